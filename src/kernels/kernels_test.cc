// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernels.hpp"

#include "kernels/arithmetic.hpp"
#include "kernels/float_environment.hpp"
#include "kernels/table.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::kernels {
namespace {

using Bytes = std::vector<std::byte>;
using spi::Operation;

constexpr std::array kDTypes{DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr std::array<std::size_t, 14> kSizes{
    0, 1, 3, 4, 5, 7, 8, 9, 15, 17, 1023, 1025, 4099, 70001};
constexpr std::array<std::size_t, 4> kShifts{0, 1, 2, 36};
/// Long arrays are tried from one shift only: they find nothing new, and take long unoptimised.
constexpr bool is_long(std::size_t n) {
  return n > 5000;
}
/// Guards that nothing outside a destination is written.
constexpr std::size_t kMargin = 64;
constexpr std::byte kGuard{0x5c};

constexpr std::array<std::uint32_t, 16> kSpecialFloats{0x7fc00000,
                                                       0xffc12345,
                                                       0x7f800001,
                                                       0xff812345,
                                                       0x7f800000,
                                                       0xff800000,
                                                       0x00000000,
                                                       0x80000000,
                                                       0x00000001,
                                                       0x807fffff,
                                                       0x7f7fffff,
                                                       0xff7fffff,
                                                       0x477fefff,
                                                       0x477ff000,
                                                       0x33000000,
                                                       0x38800000};
constexpr std::array<std::uint16_t, 12> kSpecialHalves{
    0x7e00, 0xfd01, 0x7c01, 0x7c00, 0xfc00, 0x0000, 0x8000, 0x0001, 0x83ff, 0x7bff, 0xfbff, 0x0400};
constexpr std::array<std::uint16_t, 12> kSpecialBrains{
    0x7fc0, 0xff81, 0x7f81, 0x7f80, 0xff80, 0x0000, 0x8000, 0x0001, 0x807f, 0x7f7f, 0xff7f, 0x0080};

/// Ordinary numbers with special ones among them, about one in seven.
Bytes make_elements(DType dtype, std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(n * size_of(dtype));
  for (std::size_t i = 0; i < n; ++i) {
    const bool special = random() % 7 == 0;
    const float ordinary = (static_cast<float>(random()) * 0x1p-31F - 1.0F) *
                           std::ldexp(1.0F, static_cast<int>(random() % 24) - 18);
    if (dtype == DType::kFloat32) {
      const float value =
          special ? float_of(kSpecialFloats[random() % kSpecialFloats.size()]) : ordinary;
      std::memcpy(&bytes[4 * i], &value, 4);
      continue;
    }
    const bool half = dtype == DType::kFloat16;
    const auto& specials = half ? kSpecialHalves : kSpecialBrains;
    const std::uint16_t plain = half ? float_to_half(ordinary) : float_to_brain(ordinary);
    const std::uint16_t value = special ? specials[random() % specials.size()] : plain;
    std::memcpy(&bytes[2 * i], &value, 2);
  }
  return bytes;
}

/// Memory that starts `shift` bytes off a 64-byte boundary, with margins that must stay untouched.
class Shifted {
 public:
  Shifted(const Bytes& content, std::size_t shift)
      : memory_(content.size() + shift + 2 * kMargin + 64, kGuard), size_(content.size()) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    start_ = (64 - address % 64) % 64 + kMargin + shift;
    std::copy(content.begin(), content.end(), data());
  }
  std::byte* data() { return memory_.data() + start_; }
  Bytes content() { return {data(), data() + size_}; }
  bool margins_untouched() const {
    const auto guarded = [](std::byte value) { return value == kGuard; };
    const auto begin = memory_.begin();
    const auto middle = static_cast<std::ptrdiff_t>(start_);
    const auto end = static_cast<std::ptrdiff_t>(start_ + size_);
    return std::all_of(begin, begin + middle, guarded) &&
           std::all_of(begin + end, memory_.end(), guarded);
  }

 private:
  Bytes memory_;
  std::size_t size_;
  std::size_t start_ = 0;
};

/// Every test runs on every instruction set of this processor and compares with the scalar kernels.
class Kernels : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    before_ = target_name();
    ASSERT_TRUE(select_target(GetParam()).is_ok());
    ASSERT_EQ(target_name(), GetParam());
  }
  void TearDown() override { ASSERT_TRUE(select_target(before_).is_ok()); }

 private:
  std::string before_;
};

TEST_P(Kernels, CastsGiveTheReferencesBits) {
  for (const DType from : kDTypes) {
    for (const DType to : kDTypes) {
      for (const std::size_t n : kSizes) {
        const Bytes source = make_elements(from, n, 1);
        Bytes expected(n * size_of(to));
        if (from == to) {
          expected = source;
        } else {
          scalar_table().cast(to, expected.data(), from, source.data(), n);
        }
        for (const std::size_t shift : kShifts) {
          if (is_long(n) && shift != 1) {
            continue;
          }
          Shifted in(source, shift);
          Shifted out(Bytes(expected.size()), (shift * 3) % 61);
          cast(to, out.data(), from, in.data(), n);
          ASSERT_EQ(out.content(), expected)
              << to_string(from) << " to " << to_string(to) << ", " << n << " from " << shift;
          ASSERT_TRUE(out.margins_untouched());
        }
      }
    }
  }
}

TEST_P(Kernels, CastsOfAllNarrowValuesGiveTheReferencesBits) {
  std::vector<std::uint16_t> all(65536);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  const auto* source = reinterpret_cast<const std::byte*>(all.data());
  for (const DType from : {DType::kFloat16, DType::kBFloat16}) {
    Bytes wide(all.size() * 4);
    Bytes expected(all.size() * 4);
    cast(DType::kFloat32, wide.data(), from, source, all.size());
    scalar_table().cast(DType::kFloat32, expected.data(), from, source, all.size());
    ASSERT_EQ(wide, expected) << to_string(from);
    for (const DType to : {DType::kFloat16, DType::kBFloat16}) {
      Bytes narrow(all.size() * 2);
      Bytes expected_narrow(all.size() * 2);
      cast(to, narrow.data(), DType::kFloat32, wide.data(), all.size());
      scalar_table().cast(to, expected_narrow.data(), DType::kFloat32, wide.data(), all.size());
      ASSERT_EQ(narrow, expected_narrow) << to_string(from) << " to " << to_string(to);
    }
  }
}

TEST_P(Kernels, NarrowingAFloatOfEveryUpperHalfGivesTheReferencesBits) {
  // All signs, exponents and upper fractions, with lower bits at, just above and below the middles.
  for (const std::uint32_t low : {0U, 1U, 0xfffU, 0x1000U, 0x1001U, 0x7fffU, 0x8000U, 0x8001U}) {
    std::vector<std::uint32_t> floats(65536);
    for (std::uint32_t i = 0; i < floats.size(); ++i) {
      floats[i] = (i << 16U) | low;
    }
    const auto* source = reinterpret_cast<const std::byte*>(floats.data());
    for (const DType to : {DType::kFloat16, DType::kBFloat16}) {
      Bytes out(floats.size() * 2);
      Bytes expected(floats.size() * 2);
      cast(to, out.data(), DType::kFloat32, source, floats.size());
      scalar_table().cast(to, expected.data(), DType::kFloat32, source, floats.size());
      ASSERT_EQ(out, expected) << to_string(to) << " with lower bits " << low;
    }
  }
}

TEST_P(Kernels, AccumulateGivesTheReferencesBits) {
  for (const DType dtype : kDTypes) {
    for (const std::size_t n : kSizes) {
      const Bytes left = make_elements(dtype, n, 2);
      const Bytes right = make_elements(dtype, n, 3);
      Bytes expected = left;
      scalar_table().accumulate(dtype, expected.data(), right.data(), n);
      for (const std::size_t shift : kShifts) {
        if (is_long(n) && shift != 1) {
          continue;
        }
        Shifted out(left, shift);
        Shifted in(right, (shift * 3) % 61);
        accumulate(dtype, out.data(), in.data(), n);
        ASSERT_EQ(out.content(), expected) << to_string(dtype) << ", " << n << " from " << shift;
        ASSERT_TRUE(out.margins_untouched());
      }
    }
  }
}

/// A sum's sources, and the operation over them.
struct Sum {
  Sum(DType dtype, std::size_t n, std::size_t sources, std::size_t shift) {
    for (std::size_t r = 0; r < sources; ++r) {
      const auto seed = static_cast<std::uint32_t>(10 + r);
      source.emplace_back(make_elements(dtype, n, seed), (shift * (r + 1)) % 61);
    }
    operation.kind = Operation::Kind::kWeightedSum;
    operation.dtype = dtype;
    operation.element_count = n;
    operation.source_count = static_cast<std::uint8_t>(sources);
    operation.scale = 1.0F / 37.0F;
    for (std::size_t r = 0; r < sources; ++r) {
      operation.source[r] = source[r].data();
      operation.weight[r] = static_cast<float>(1 + r * r);
    }
  }
  std::vector<Shifted> source;
  Operation operation;
};

TEST_P(Kernels, WeightedSumsGiveTheReferencesBits) {
  for (const DType dtype : kDTypes) {
    for (const std::size_t n : kSizes) {
      for (const std::size_t sources : {1U, 2U, 3U, 4U, 5U, 16U}) {
        for (const std::size_t shift : {0U, 1U}) {
          if (is_long(n) && (shift == 0 || (sources != 2 && sources != 5))) {
            continue;
          }
          Sum sum(dtype, n, sources, shift);
          Bytes expected(n * size_of(dtype));
          sum.operation.destination = expected.data();
          scalar_table().weighted_sum(sum.operation);
          Shifted out(Bytes(expected.size()), shift);
          sum.operation.destination = out.data();
          run(sum.operation);
          ASSERT_EQ(out.content(), expected)
              << to_string(dtype) << ", " << n << " of " << sources << " from " << shift;
          ASSERT_TRUE(out.margins_untouched());
        }
      }
    }
  }
}

TEST_P(Kernels, WeightedSumsInSeveralOperationsGiveTheBitsOfOne) {
  for (const DType dtype : kDTypes) {
    for (const std::size_t n : {0U, 1U, 17U, 1025U}) {
      Sum sum(dtype, n, 16, 0);
      Bytes expected(n * size_of(dtype));
      sum.operation.destination = expected.data();
      scalar_table().weighted_sum(sum.operation);

      Bytes out(expected.size());
      std::vector<float> accumulator(n + 1, 7.0F);
      Operation part = sum.operation;
      part.destination = out.data();
      part.accumulator = accumulator.data();
      part.source_count = 3;
      part.finishes = false;
      run(part);
      part.begins = false;
      part.source_count = 5;
      std::copy_n(&sum.operation.source[3], 5, part.source.begin());
      std::copy_n(&sum.operation.weight[3], 5, part.weight.begin());
      run(part);
      part.finishes = true;
      part.source_count = 8;
      std::copy_n(&sum.operation.source[8], 8, part.source.begin());
      std::copy_n(&sum.operation.weight[8], 8, part.weight.begin());
      run(part);
      ASSERT_EQ(out, expected) << to_string(dtype) << ", " << n;
      ASSERT_EQ(accumulator[n], 7.0F);
    }
  }
}

TEST_P(Kernels, ADestinationMayBeASource) {
  for (const DType dtype : kDTypes) {
    for (const std::size_t n : {1U, 9U, 1025U}) {
      Sum sum(dtype, n, 3, 0);
      Bytes expected(n * size_of(dtype));
      sum.operation.destination = expected.data();
      scalar_table().weighted_sum(sum.operation);
      sum.operation.destination = sum.source[1].data();
      run(sum.operation);
      ASSERT_EQ(sum.source[1].content(), expected) << to_string(dtype) << ", " << n;
    }
  }
}

TEST_P(Kernels, SlicesTogetherGiveTheBitsOfTheWhole) {
  Sum sum(DType::kBFloat16, 1025, 3, 1);
  Bytes expected(1025 * 2);
  sum.operation.destination = expected.data();
  run(sum.operation);
  Bytes out(expected.size());
  sum.operation.destination = out.data();
  run(slice(sum.operation, 320, 705));
  run(slice(sum.operation, 0, 320));
  EXPECT_EQ(out, expected);
}

TEST_P(Kernels, CountsNanAndInfinityAndNothingElse) {
  for (const DType dtype : kDTypes) {
    for (const std::size_t n : kSizes) {
      Bytes elements = make_elements(dtype, n, 4);
      std::size_t expected = 0;
      for (std::size_t i = 0; i < n; ++i) {
        float value = 0;
        if (dtype == DType::kFloat32) {
          std::memcpy(&value, &elements[4 * i], 4);
        } else {
          std::uint16_t bits = 0;
          std::memcpy(&bits, &elements[2 * i], 2);
          value = dtype == DType::kFloat16 ? half_to_float(bits) : brain_to_float(bits);
        }
        expected += std::isfinite(value) ? 0U : 1U;
      }
      for (const std::size_t shift : kShifts) {
        if (is_long(n) && shift != 1) {
          continue;
        }
        Shifted in(elements, shift);
        ASSERT_EQ(count_non_finite(dtype, in.data(), n), expected) << to_string(dtype) << n;
      }
    }
  }
}

TEST_P(Kernels, KnownSumsComeOut) {
  const std::array<float, 3> left{1.0F, -2.5F, 1e20F};
  const std::array<float, 3> right{3.0F, 0.5F, -1e20F};
  std::array<float, 3> out{};
  Operation operation;
  operation.kind = Operation::Kind::kWeightedSum;
  operation.element_count = 3;
  operation.source_count = 2;
  operation.source[0] = reinterpret_cast<const std::byte*>(left.data());
  operation.source[1] = reinterpret_cast<const std::byte*>(right.data());
  operation.weight = {2.0F, 4.0F};
  operation.scale = 0.25F;
  operation.destination = reinterpret_cast<std::byte*>(out.data());
  run(operation);
  EXPECT_EQ(out[0], 3.5F);
  EXPECT_EQ(out[1], -0.75F);
  EXPECT_EQ(out[2], -0.5e20F);
}

TEST_P(Kernels, SumsThatAreNanAreCanonical) {
  const std::array<std::uint32_t, 9> left{
      0xffc12345, 0x7f800000, 0x7f800001, 0xffc12345, 1, 1, 1, 1, 0xffc12345};
  const std::array<std::uint32_t, 9> right{
      0x7fc54321, 0xff800000, 0x3f800000, 0x3f800000, 2, 2, 2, 2, 0x7fc54321};
  for (const DType dtype : kDTypes) {
    Bytes destination(9 * size_of(dtype));
    Bytes source(9 * size_of(dtype));
    cast(dtype,
         destination.data(),
         DType::kFloat32,
         reinterpret_cast<const std::byte*>(left.data()),
         9);
    cast(
        dtype, source.data(), DType::kFloat32, reinterpret_cast<const std::byte*>(right.data()), 9);
    accumulate(dtype, destination.data(), source.data(), 9);
    std::array<std::uint32_t, 9> out{};
    cast(DType::kFloat32, reinterpret_cast<std::byte*>(out.data()), dtype, destination.data(), 9);
    for (const std::size_t i : {0U, 1U, 2U, 3U, 8U}) {
      EXPECT_EQ(out[i], kCanonicalNan) << to_string(dtype) << " at " << i;
    }
  }
}

TEST_P(Kernels, ZeroAndCopyTouchWhatTheySay) {
  Shifted out(make_elements(DType::kFloat16, 33, 5), 2);
  const Bytes source = make_elements(DType::kFloat16, 33, 6);
  copy(DType::kFloat16, out.data(), source.data(), 33);
  EXPECT_EQ(out.content(), source);
  zero(DType::kFloat16, out.data(), 33);
  EXPECT_EQ(out.content(), Bytes(66));
  EXPECT_TRUE(out.margins_untouched());
  zero(DType::kFloat32, nullptr, 0);
  copy(DType::kFloat32, nullptr, nullptr, 0);
}

#if defined(__SSE2__)
TEST_P(Kernels, DenormalsSurviveOnAThreadThatFlushesThem) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040U);  // flush results and inputs to zero
  std::array<std::uint32_t, 9> left{};
  std::array<std::uint32_t, 9> right{};
  left.fill(0x00000123);
  right.fill(0x00000456);
  accumulate(DType::kFloat32,
             reinterpret_cast<std::byte*>(left.data()),
             reinterpret_cast<const std::byte*>(right.data()),
             9);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(after & 0x8040U, 0x8040U) << "the thread's own setting was not put back";
  for (const std::uint32_t sum : left) {
    EXPECT_EQ(sum, 0x00000579U);
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(EveryTarget,
                         Kernels,
                         testing::ValuesIn(available_targets()),
                         [](const auto& test) { return std::string(test.param); });

TEST(KernelTargets, AnUnknownOneIsRefusedAndTheOthersAreNamed) {
  const std::string before(target_name());
  const Status status = select_target("abacus");
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("scalar"), std::string_view::npos);
  EXPECT_EQ(target_name(), before);
}

TEST(KernelValidation, SumsThatMakeNoSenseAreRefused) {
  Operation operation;
  operation.kind = Operation::Kind::kWeightedSum;
  operation.element_count = 1;
  EXPECT_EQ(validate(operation).code(), StatusCode::kInvalidArgument);  // no source
  operation.source_count = 17;
  EXPECT_EQ(validate(operation).code(), StatusCode::kInvalidArgument);
  operation.source_count = 2;
  EXPECT_TRUE(validate(operation).is_ok());
  operation.finishes = false;
  EXPECT_EQ(validate(operation).code(), StatusCode::kInvalidArgument);  // no accumulator
  float accumulator = 0;
  operation.accumulator = &accumulator;
  EXPECT_TRUE(validate(operation).is_ok());
}

}  // namespace
}  // namespace stretto::kernels

// SPDX-License-Identifier: Apache-2.0
#include "kernels/coding.hpp"

#include "kernels/coding_arithmetic.hpp"
#include "kernels/kernels.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::kernels {
namespace {

using Bytes = std::vector<std::byte>;

struct Named {
  WireFormat format;
  const char* name;
};
constexpr std::array kFormats{Named{WireFormat::kHalf, "half"},
                              Named{WireFormat::kBrain, "brain"},
                              Named{WireFormat::kInt8, "int8"},
                              Named{WireFormat::kInt4, "int4"},
                              Named{WireFormat::kSign, "sign"},
                              Named{WireFormat::kVote, "vote"}};
// From 8192 on what is left goes past the caches, if it is aligned.
constexpr std::array<std::size_t, 13> kSizes{
    0, 1, 2, 7, 31, 255, 256, 257, 511, 512, 1000, 4099, 8192 + 300};

/// Ordinary values with heavy tails, spikes and denormals among them.
std::vector<float> draw_values(std::size_t n, std::uint32_t seed, bool with_refused) {
  std::mt19937 random(seed);
  std::student_t_distribution<float> heavy(3);
  std::vector<float> values(n);
  for (float& value : values) {
    value = 1e-3F * heavy(random);
  }
  constexpr std::array kSpecial{0.0F, -0.0F, 1e6F, -1e6F, 1e-40F, -3e-39F, 1e-30F, 8e37F};
  constexpr std::array kRefused{std::numeric_limits<float>::quiet_NaN(),
                                std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::max()};
  for (std::size_t i = 0; i < n; ++i) {
    if (random() % 40 == 0) {
      values[i] = kSpecial[random() % kSpecial.size()];
    }
    if (with_refused && random() % 300 == 0) {
      values[i] = kRefused[random() % kRefused.size()];
    }
  }
  return values;
}

/// The same, drawn once.
const std::vector<float>& make_values(std::size_t n, std::uint32_t seed, bool with_refused) {
  static std::map<std::tuple<std::size_t, std::uint32_t, bool>, std::vector<float>> drawn;
  auto& values = drawn[{n, seed, with_refused}];
  if (values.empty()) {
    values = draw_values(n, seed, with_refused);
  }
  return values;
}

/// One call of encode with everything that it wrote.
struct Encoded {
  Bytes wire;
  std::vector<float> left;
  EncodeFacts facts;
};

struct Case {
  DType dtype = DType::kFloat32;
  std::size_t n = 0;
  bool has_residual = false;
  bool random = false;
  bool refused = false;
  float scale = 1;
};

constexpr std::byte kGuard{0x5c};

Encoded run(WireFormat format, const Case& c, std::size_t shift) {
  const std::vector<float>& floats = make_values(c.n, 7, c.refused);
  Bytes values(shift + c.n * size_of(c.dtype));
  cast(c.dtype,
       values.data() + shift,
       DType::kFloat32,
       reinterpret_cast<const std::byte*>(floats.data()),
       c.n);
  const std::vector<float>& residual = make_values(c.n, 9, false);
  Encoded out;
  const std::size_t bytes = wire_bytes(format, c.n);
  Bytes wire(shift + bytes + 64, kGuard);
  std::vector<float> memory(c.n + 64, -1.0F);
  const std::size_t lines = reinterpret_cast<std::uintptr_t>(memory.data()) % 64 / sizeof(float);
  float* const left = memory.data() + (16 - lines) + shift;
  EncodeTask task;
  task.dtype = c.dtype;
  task.values = values.data() + shift;
  task.element_count = c.n;
  task.scale = c.scale;
  task.residual = c.has_residual ? residual.data() : nullptr;
  task.factor = 0.75F;
  task.left = left;
  task.wire = wire.data() + shift;
  task.random = c.random;
  task.seed = 12345;
  out.facts = encode(format, task);
  EXPECT_TRUE(std::all_of(wire.begin() + static_cast<std::ptrdiff_t>(shift + bytes),
                          wire.end(),
                          [](std::byte b) { return b == kGuard; }));
  EXPECT_TRUE(std::all_of(
      left + c.n, memory.data() + memory.size(), [](float value) { return value == -1.0F; }));
  out.left.assign(left, left + c.n);
  out.wire.assign(wire.begin() + static_cast<std::ptrdiff_t>(shift),
                  wire.begin() + static_cast<std::ptrdiff_t>(shift + bytes));
  return out;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::size_t n : kSizes) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const bool residual : {false, true}) {
        for (const bool random : {false, true}) {
          all.push_back({dtype, n, residual, random, false, 1});
          all.push_back({dtype, n, residual, random, true, 1.0F / 3});
        }
      }
    }
  }
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

class Coding : public ::testing::TestWithParam<Named> {};

TEST_P(Coding, GivesTheSameBitsOnEveryInstructionSet) {
  const WireFormat format = GetParam().format;
  const std::string before(target_name());
  for (const Case& c : cases()) {
    ASSERT_TRUE(select_target("scalar").is_ok());
    const Encoded reference = run(format, c, 0);
    Bytes decoded(c.n * size_of(c.dtype));
    std::vector<float> sum(c.n, 0.5F);
    decode(format, reference.wire.data(), c.n, 0.1F, c.dtype, decoded.data());
    absorb(format, reference.wire.data(), c.n, 3, sum.data());
    for (const std::string_view target : available_targets()) {
      ASSERT_TRUE(select_target(target).is_ok());
      for (const std::size_t shift : {0U, 1U, 4U}) {
        const Encoded here = run(format, c, shift);
        EXPECT_EQ(here.wire, reference.wire) << target << ", " << c.n << " elements";
        EXPECT_TRUE(same_bits(here.left, reference.left)) << target << ", " << c.n << " elements";
        EXPECT_EQ(here.facts.refused, reference.facts.refused);
        EXPECT_EQ(here.facts.magnitudes, reference.facts.magnitudes);
        EXPECT_EQ(here.facts.value_squares, reference.facts.value_squares);
        EXPECT_EQ(here.facts.left_squares, reference.facts.left_squares);
      }
      Bytes again(decoded.size());
      std::vector<float> sum_again(c.n, 0.5F);
      decode(format, reference.wire.data(), c.n, 0.1F, c.dtype, again.data());
      absorb(format, reference.wire.data(), c.n, 3, sum_again.data());
      EXPECT_EQ(again, decoded) << target << ", " << c.n << " elements";
      EXPECT_TRUE(same_bits(sum_again, sum)) << target << ", " << c.n << " elements";
    }
  }
  ASSERT_TRUE(select_target(before).is_ok());
}

INSTANTIATE_TEST_SUITE_P(Formats, Coding, ::testing::ValuesIn(kFormats), [](const auto& test) {
  return test.param.name;
});

}  // namespace
}  // namespace stretto::kernels

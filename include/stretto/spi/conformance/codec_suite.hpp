// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/codec.hpp"
#include "stretto/spi/conformance/codec_world.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

// The suite that codec_conformance.hpp and the cases beside it are written in.

namespace stretto::spi {

/// One codec under test.
struct CodecFactory {
  std::string name;  ///< letters, digits and underscores
  std::function<Result<std::shared_ptr<const Codec>>()> make;
};

/// Prints parameters by name.
inline void PrintTo(const CodecFactory& factory, std::ostream* out) {
  *out << factory.name;
}
inline std::string codec_factory_name(const testing::TestParamInfo<CodecFactory>& test) {
  return test.param.name;
}

inline constexpr std::array<std::size_t, 8> kCodecSizes{0, 1, 3, 255, 256, 257, 1000, 32768 + 5};
inline constexpr std::array kCodecTypes{DType::kFloat32, DType::kFloat16, DType::kBFloat16};

/// What the cases have in common.  Each is named after the sentence of the contract that it checks.
class CodecConformance : public testing::TestWithParam<CodecFactory> {
 protected:
  using Bytes = std::vector<std::byte>;
  using Floats = std::vector<float>;
  using World = conformance::CodecWorld;
  using Place = conformance::CodecPlace;

  void SetUp() override {
    auto made = GetParam().make();
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    codec_ = std::move(*made);
  }

  const Codec& codec() const { return *codec_; }
  bool one_round() const { return codec().traits().rounds == 1; }
  /// Whether sums are of elements, as far as anybody can tell from outside.
  bool sums_elements() const { return one_round() && codec().sum_floats(segment(1000), 0) == 1000; }

  /// A vector, or for codecs that take whole parameters a matrix.
  CodecSegment segment(std::size_t n, DType dtype = DType::kFloat32) const {
    CodecSegment segment;
    segment.dtype = dtype;
    segment.element_count = n;
    segment.seed = 7;
    if (codec().traits().whole_parameter) {
      segment.row_elements = 1;
      for (std::size_t row = 1; row * row <= n; ++row) {
        segment.row_elements = n % row == 0 ? n / row : segment.row_elements;
      }
    }
    return segment;
  }
  static Floats normal(std::size_t n, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> gauss;
    Floats values(n);
    std::generate(values.begin(), values.end(), [&] { return gauss(random); });
    return values;
  }
  /// Each rank's gradient of a step.
  static std::vector<Bytes> gradients(const CodecSegment& segment,
                                      std::size_t ranks,
                                      std::uint64_t step) {
    std::vector<Bytes> all;
    for (std::size_t r = 0; r < ranks; ++r) {
      all.push_back(
          conformance::to_memory(segment.dtype, normal(segment.element_count, 100 * step + r)));
    }
    return all;
  }
  static CodecRound round_of(unsigned round, std::uint64_t step = 1) { return {round, step, 0, 1}; }

  /// The wire of the first round, cut to its length.
  Bytes encode(const CodecSegment& segment, std::span<const std::byte> values, Place& place) const {
    Bytes wire(codec().most_wire_bytes(segment, 0));
    const auto done = codec().encode(segment, round_of(0), values, place.memory(), wire);
    EXPECT_TRUE(done.has_value()) << done.error().to_string();
    wire.resize(done ? done->wire_bytes : 0);
    return wire;
  }
  Bytes encode(const CodecSegment& segment, const Floats& values) const {
    Place place(codec(), segment);
    return encode(segment, conformance::to_memory(segment.dtype, values), place);
  }
  Floats decode(const CodecSegment& segment, const Bytes& wire) const {
    Place place(codec(), segment);
    Bytes result(segment.element_count * size_of(segment.dtype));
    const Status status = codec().decode(segment, round_of(0), wire, place.memory(), result);
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    return conformance::from_memory(segment.dtype, result);
  }
  /// What comes back of values that one rank sends.
  Floats there_and_back(const CodecSegment& segment, const Floats& values) const {
    if (one_round()) {
      return decode(segment, encode(segment, values));
    }
    World world(codec(), segment, 1);
    world.step({conformance::to_memory(segment.dtype, values)}, {1});
    return world.result(0);
  }
  /// Holds what came back to the codec's kind of error.
  void check_error(const Floats& values, const Floats& back) const;
  /// A wire of somebody else: an error and nothing changed, or numbers.
  void check_wrong(const CodecSegment& segment, const Bytes& wire, bool must_fail) const;

  static bool all_finite(const Floats& values) {
    return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
  }
  static float largest_of(const Floats& values) {
    float largest = 0;
    for (const float value : values) {
      largest = std::max(largest, std::abs(value));
    }
    return largest;
  }
  static bool same_bits(const Floats& a, const Floats& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
  }

 private:
  std::shared_ptr<const Codec> codec_;  // as its makers share it
};

inline void CodecConformance::check_error(const Floats& values, const Floats& back) const {
  ASSERT_EQ(back.size(), values.size());
  ASSERT_TRUE(all_finite(back));
  const double largest = largest_of(values);
  double squares = 0;
  double left = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    const double error = std::abs(value - static_cast<double>(back[i]));
    squares += value * value;
    left += error * error;
    if (codec().traits().error == CodecError::kNone) {
      ASSERT_EQ(back[i], values[i]) << "element " << i;
    } else if (codec().traits().error == CodecError::kRounding) {
      // Eight bits at least, or what is nothing beside the largest.
      ASSERT_LE(error, 0x1p-8 * std::abs(value) + 0x1p-38 * largest + 0x1p-120) << "element " << i;
    }
  }
  if (codec().traits().error == CodecError::kBiased) {
    // Error feedback converges for whatever makes nothing longer (Karimireddy et al. 2019).
    EXPECT_LE(left, squares * (1 + 1e-6));
  }
}

inline void CodecConformance::check_wrong(const CodecSegment& segment,
                                          const Bytes& wire,
                                          bool must_fail) const {
  const Bytes before(segment.element_count * size_of(segment.dtype), std::byte{0x5c});
  Bytes result = before;
  Place place(codec(), segment);
  const Status decoded = codec().decode(segment, round_of(0), wire, place.memory(), result);
  const Floats sums_before(codec().sum_floats(segment, 0), 0.5F);
  Floats sums = sums_before;
  const Status absorbed = codec().absorb(segment, round_of(0), wire, 2, sums);
  if (must_fail) {
    EXPECT_EQ(decoded.code(), StatusCode::kCorruptWire);
    EXPECT_EQ(absorbed.code(), StatusCode::kCorruptWire);
  }
  if (!absorbed.is_ok()) {
    EXPECT_EQ(absorbed.code(), StatusCode::kCorruptWire);
    EXPECT_EQ(sums, sums_before);
  }
  EXPECT_TRUE(all_finite(sums));
  if (!decoded.is_ok()) {
    EXPECT_EQ(decoded.code(), StatusCode::kCorruptWire);
    EXPECT_EQ(result, before);
  } else if (one_round()) {
    EXPECT_TRUE(all_finite(conformance::from_memory(segment.dtype, result)));
  }
}

}  // namespace stretto::spi

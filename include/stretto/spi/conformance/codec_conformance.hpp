// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/codec.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

// What every implementation of spi::Codec has to do, for float32 segments of a vector.  Use:
//
//   INSTANTIATE_TEST_SUITE_P(Mine, stretto::spi::CodecConformance,
//                            testing::Values(stretto::spi::CodecFactory{"mine", make_mine}),
//                            stretto::spi::codec_factory_name);

namespace stretto::spi {

/// One codec under test.
struct CodecFactory {
  std::string name;  ///< letters, digits and underscores
  std::function<Result<std::unique_ptr<Codec>>(const CodecSegment&)> make;
};

/// Prints parameters by name.
inline void PrintTo(const CodecFactory& factory, std::ostream* out) {
  *out << factory.name;
}
inline std::string codec_factory_name(const testing::TestParamInfo<CodecFactory>& test) {
  return test.param.name;
}

/// The suite.  Each case is named after the sentence of the contract that it checks.
class CodecConformance : public testing::TestWithParam<CodecFactory> {
 protected:
  using Wire = std::vector<std::byte>;

  std::unique_ptr<Codec> make(std::size_t n) const {
    CodecSegment segment;
    segment.element_count = n;
    segment.seed = 7;
    auto made = GetParam().make(segment);
    EXPECT_TRUE(made.has_value()) << made.error().to_string();
    return std::move(*made);
  }
  static std::span<const std::byte> bytes_of(const std::vector<float>& values) {
    return std::as_bytes(std::span(values));
  }
  static std::vector<float> normal(std::size_t n, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> gauss;
    std::vector<float> values(n);
    for (float& value : values) {
      value = gauss(random);
    }
    return values;
  }
  /// The wire of a round, cut to its length.
  static Wire encode(Codec& codec,
                     const std::vector<float>& values,
                     std::span<float> residual = {},
                     unsigned round = 0) {
    Wire wire(codec.most_wire_bytes(round));
    const auto done = codec.encode(round, bytes_of(values), residual, wire);
    EXPECT_TRUE(done.has_value()) << done.error().to_string();
    EXPECT_LE(done->wire_bytes, wire.size());
    wire.resize(done->wire_bytes);
    return wire;
  }
  static std::vector<float> decode(Codec& codec, std::size_t n, float scale = 1) {
    std::vector<float> result(n);
    const Status status = codec.decode(0, scale, std::as_writable_bytes(std::span(result)));
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    return result;
  }
  bool one_round() const { return make(1)->traits().rounds == 1; }
};

inline constexpr std::size_t kCodecSizes[] = {0, 1, 2, 3, 31, 64, 65, 1000, 4099};

TEST_P(CodecConformance, HasANameAndAtLeastOneRound) {
  const auto codec = make(1);
  EXPECT_FALSE(codec->traits().name.empty());
  EXPECT_GE(codec->traits().rounds, 1U);
}

TEST_P(CodecConformance, WithoutErrorDecodingGivesTheSameBits) {
  for (const std::size_t n : kCodecSizes) {
    const auto codec = make(n);
    if (codec->traits().error != CodecError::kNone) {
      return;  // the next cases hold it to what it promises
    }
    const std::vector<float> values = normal(n, n + 1);
    ASSERT_TRUE(codec->absorb(0, 1, encode(*codec, values)).is_ok());
    EXPECT_EQ(decode(*codec, n), values) << n << " elements";
  }
}

TEST_P(CodecConformance, WhatTheWireDoesNotSayStaysInTheResidual) {
  if (!one_round()) {
    return;
  }
  for (const std::size_t n : kCodecSizes) {
    const auto codec = make(n);
    const std::vector<float> values = normal(n, n + 1);
    std::vector<float> residual = normal(n, n + 2);
    const std::vector<float> before = residual;
    ASSERT_TRUE(codec->absorb(0, 1, encode(*codec, values, residual)).is_ok());
    const std::vector<float> sent = decode(*codec, n);
    for (std::size_t i = 0; i < n; ++i) {
      const float all = values[i] + before[i];
      const float scale = std::max({std::abs(values[i]), std::abs(before[i]), std::abs(sent[i])});
      EXPECT_NEAR(sent[i] + residual[i], all, 4e-7F * scale) << n << " elements, element " << i;
    }
  }
}

TEST_P(CodecConformance, SumsAreWeightedBySamplesAndScaledOnce) {
  if (!one_round()) {
    return;
  }
  constexpr std::size_t kSize = 257;
  const auto codec = make(kSize);
  const std::vector<std::uint64_t> samples{3, 0, 5};
  std::vector<std::vector<float>> sent;
  std::vector<Wire> wires;
  for (std::size_t r = 0; r < samples.size(); ++r) {
    wires.push_back(encode(*codec, normal(kSize, r)));
    ASSERT_TRUE(codec->absorb(0, 1, wires.back()).is_ok());
    sent.push_back(decode(*codec, kSize));
  }
  for (std::size_t r = 0; r < samples.size(); ++r) {
    ASSERT_TRUE(codec->absorb(0, samples[r], wires[r]).is_ok());
  }
  const std::vector<float> mean = decode(*codec, kSize, 1.0F / 8);
  for (std::size_t i = 0; i < kSize; ++i) {
    float total = 0;
    for (std::size_t r = 0; r < samples.size(); ++r) {
      const float product = static_cast<float>(samples[r]) * sent[r][i];
      total += product;
    }
    EXPECT_EQ(mean[i], total * (1.0F / 8)) << "element " << i;
  }
  EXPECT_EQ(decode(*codec, kSize), std::vector<float>(kSize)) << "decode forgets";
}

TEST_P(CodecConformance, EqualSegmentsGiveEqualWires) {
  const auto one = make(1000);
  const auto other = make(1000);
  const std::vector<float> values = normal(1000, 1);
  EXPECT_EQ(encode(*one, values), encode(*other, values));
}

TEST_P(CodecConformance, WhatIsNotFiniteIsCountedAndStaysOut) {
  if (!one_round()) {
    return;
  }
  const auto codec = make(100);
  std::vector<float> values = normal(100, 1);
  values[0] = std::numeric_limits<float>::quiet_NaN();
  values[50] = std::numeric_limits<float>::infinity();
  values[99] = -std::numeric_limits<float>::infinity();
  std::vector<float> residual(100);
  Wire wire(codec->most_wire_bytes(0));
  const auto done = codec->encode(0, bytes_of(values), residual, wire);
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->non_finite, 3U);
  wire.resize(done->wire_bytes);
  ASSERT_TRUE(codec->absorb(0, 1, wire).is_ok());
  for (const float value : decode(*codec, 100)) {
    EXPECT_TRUE(std::isfinite(value));
  }
  for (const float left : residual) {
    EXPECT_TRUE(std::isfinite(left));
  }
}

TEST_P(CodecConformance, AWireThatIsCutOrTooLongIsRefusedAndNothingOfItIsUsed) {
  if (!one_round()) {
    return;
  }
  const auto codec = make(100);
  const std::vector<float> values = normal(100, 1);
  const Wire wire = encode(*codec, values);
  ASSERT_TRUE(codec->absorb(0, 1, wire).is_ok());
  const std::vector<float> alone = decode(*codec, 100);
  ASSERT_TRUE(codec->absorb(0, 1, wire).is_ok());
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{1}, wire.size() - 1, wire.size() + 1}) {
    Wire wrong = wire;
    wrong.resize(length);
    EXPECT_EQ(codec->absorb(0, 1, wrong).code(), StatusCode::kCorruptWire) << length << " bytes";
  }
  EXPECT_EQ(decode(*codec, 100), alone);
}

TEST_P(CodecConformance, SpansOfAnotherLengthAreRefused) {
  const auto codec = make(100);
  const std::vector<float> values(99);
  Wire wire(codec->most_wire_bytes(0));
  EXPECT_EQ(codec->encode(0, bytes_of(values), {}, wire).error().code(),
            StatusCode::kInvalidArgument);
  const std::vector<float> right(100);
  std::vector<float> residual(101);
  EXPECT_EQ(codec->encode(0, bytes_of(right), residual, wire).error().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(codec->encode(codec->traits().rounds, bytes_of(right), {}, wire).error().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace stretto::spi

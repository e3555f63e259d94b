// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/conformance/codec_step_cases.hpp"
#include "stretto/spi/conformance/codec_suite.hpp"
#include "stretto/spi/conformance/codec_wire_cases.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

// What every implementation of spi::Codec has to do.  Use:
//
//   INSTANTIATE_TEST_SUITE_P(Mine, stretto::spi::CodecConformance,
//                            testing::Values(stretto::spi::CodecFactory{"mine", make_mine}),
//                            stretto::spi::codec_factory_name);

namespace stretto::spi {

TEST_P(CodecConformance, HasANameAndAtLeastOneRound) {
  EXPECT_FALSE(codec().traits().name.empty());
  EXPECT_GE(codec().traits().rounds, 1U);
  EXPECT_GT(codec().traits().segment_elements, 0U);
}

TEST_P(CodecConformance, TheErrorIsOfItsKind) {
  constexpr std::array kSpikes{1e6F, -1e6F, 1e-40F, -3e-39F, 0.0F, -0.0F};
  for (const DType dtype : kCodecTypes) {
    for (const std::size_t n : kCodecSizes) {
      const CodecSegment here = segment(n, dtype);
      Floats plain =
          conformance::from_memory(dtype, conformance::to_memory(dtype, normal(n, n + 1)));
      check_error(plain, there_and_back(here, plain));
      Floats tiny(n);
      for (std::size_t i = 0; i < n; ++i) {
        tiny[i] = 1e-41F * plain[i];
        if (dtype != DType::kFloat16 && i % 37 == 5) {
          plain[i] = kSpikes[i / 37 % kSpikes.size()];
        }
      }
      plain = conformance::from_memory(dtype, conformance::to_memory(dtype, plain));
      tiny = conformance::from_memory(dtype, conformance::to_memory(dtype, tiny));
      check_error(plain, there_and_back(here, plain));
      check_error(tiny, there_and_back(here, tiny));
    }
  }
}

TEST_P(CodecConformance, AbsorbAddsWeightTimesWhatTheWireSays) {
  if (!sums_elements()) {
    return;
  }
  for (const std::size_t n : kCodecSizes) {
    const CodecSegment here = segment(n);
    const Bytes wire = encode(here, normal(n, n));
    const Floats said = decode(here, wire);
    const Floats before = normal(n, n + 1);
    Floats sums = before;
    ASSERT_TRUE(codec().absorb(here, round_of(0), wire, 3, sums).is_ok());
    for (std::size_t i = 0; i < n; ++i) {
      const double expected = static_cast<double>(before[i]) + 3 * static_cast<double>(said[i]);
      ASSERT_NEAR(sums[i], expected, 0x1p-22 * (std::abs(before[i]) + 3 * std::abs(said[i])));
    }
  }
}

TEST_P(CodecConformance, ResolveGivesScaleTimesSums) {
  if (!sums_elements()) {
    return;
  }
  for (const DType dtype : kCodecTypes) {
    const CodecSegment here = segment(1000, dtype);
    const Floats sums = normal(1000, 3);
    Floats own = sums;
    Bytes result(1000 * size_of(dtype));
    Place place(codec(), here);
    ASSERT_TRUE(codec().resolve(here, round_of(0), own, 0.3F, place.memory(), result).is_ok());
    Floats expected(1000);
    std::transform(
        sums.begin(), sums.end(), expected.begin(), [](float sum) { return sum * 0.3F; });
    EXPECT_EQ(result, conformance::to_memory(dtype, expected));
  }
}

TEST_P(CodecConformance, ConcludeEncodesTheMean) {
  if (!sums_elements()) {
    return;
  }
  for (const std::size_t n : kCodecSizes) {
    const CodecSegment here = segment(n);
    Floats sums = normal(n, 4);
    Floats mean = sums;
    std::transform(mean.begin(), mean.end(), mean.begin(), [](float sum) { return sum * 0.125F; });
    Place place(codec(), here);
    Bytes wire(codec().most_wire_bytes(here, 0));
    const auto done = codec().conclude(here, round_of(0), sums, 0.125F, place.memory(), wire);
    ASSERT_TRUE(done.has_value()) << done.error().to_string();
    wire.resize(done->wire_bytes);
    check_error(mean, decode(here, wire));
  }
}

TEST_P(CodecConformance, WhatIsUnbiasedLeavesOutNothingOnAverage) {
  if (codec().traits().error != CodecError::kUnbiased || !one_round()) {
    return;
  }
  constexpr std::size_t kSeeds = 2000;
  CodecSegment here = segment(257);
  const Floats values = normal(257, 1);
  std::vector<double> sum(257);
  std::vector<double> squares(257);
  std::vector<double> low = std::vector<double>(values.begin(), values.end());
  std::vector<double> high = low;
  for (std::size_t seed = 0; seed < kSeeds; ++seed) {
    here.seed = seed;
    const Floats said = decode(here, encode(here, values));
    for (std::size_t i = 0; i < said.size(); ++i) {
      const double difference = static_cast<double>(said[i]) - static_cast<double>(values[i]);
      sum[i] += difference;
      squares[i] += difference * difference;
      low[i] = std::min(low[i], static_cast<double>(said[i]));
      high[i] = std::max(high[i], static_cast<double>(said[i]));
    }
  }
  double jump = 0;  // the most that a chance so small that it never came may hide
  for (std::size_t i = 0; i < values.size(); ++i) {
    jump = std::max(jump, high[i] - low[i]);
  }
  EXPECT_GT(jump, 0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double error = std::sqrt(squares[i]) / kSeeds;
    EXPECT_LE(std::abs(sum[i]) / kSeeds, 5 * error + 5 * jump / kSeeds) << "element " << i;
  }
}

}  // namespace stretto::spi

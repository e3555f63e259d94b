// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/conformance/codec_suite.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

// What spi::Codec says of steps: what all ranks get, and what they keep for the next step.

namespace stretto::spi {

TEST_P(CodecConformance, ZerosGiveZeros) {
  for (const std::size_t n : kCodecSizes) {
    const CodecSegment here = segment(n);
    World world(codec(), here, 2);
    for (int step = 0; step < 2; ++step) {
      world.step({Bytes(4 * n), Bytes(4 * n)}, {1, 2});
      EXPECT_EQ(world.result(1), Floats(n)) << n << " elements";
    }
    EXPECT_EQ(largest_of(world.rank(0).residual()), 0);
  }
}

TEST_P(CodecConformance, EveryRankDecodesTheSame) {
  for (const DType dtype : kCodecTypes) {
    for (const auto form : {World::Form::kOwner, World::Form::kAllGather}) {
      const CodecSegment here = segment(1000, dtype);
      World world(codec(), here, 3, form);
      for (std::uint64_t step = 0; step < 5; ++step) {
        // A rank without samples takes part in the result all the same.
        world.step(gradients(here, 3, step), {2, step % 2, 3});
        EXPECT_TRUE(all_finite(world.result(0)));
        for (std::size_t r = 1; r < 3; ++r) {
          EXPECT_EQ(world.result_memory(r), world.result_memory(0)) << "step " << step;
        }
      }
    }
  }
}

TEST_P(CodecConformance, WhatIsSentAndWhatIsLeftIsWhatWasThere) {
  if (!codec().traits().feedback || codec().traits().owns_momentum) {
    return;
  }
  constexpr std::size_t kSteps = 20;
  const std::vector<std::uint64_t> samples{2, 3, 2};
  for (const std::size_t n : kCodecSizes) {
    const CodecSegment here = segment(n);
    World world(codec(), here, samples.size());
    std::vector<double> missing(n);
    std::vector<double> size(n);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const auto values = gradients(here, samples.size(), step);
      world.step(values, samples);
      const Floats result = world.result(0);
      for (std::size_t i = 0; i < n; ++i) {
        missing[i] -= result[i];
        size[i] = std::max(size[i], std::abs(static_cast<double>(result[i])));
      }
      for (std::size_t r = 0; r < samples.size(); ++r) {
        const Floats gradient = conformance::from_memory(here.dtype, values[r]);
        const Floats& residual = world.rank(r).residual();
        for (std::size_t i = 0; i < n; ++i) {
          missing[i] += static_cast<double>(samples[r]) / 7 * static_cast<double>(gradient[i]);
          size[i] =
              std::max(size[i], static_cast<double>(std::abs(gradient[i]) + std::abs(residual[i])));
        }
      }
    }
    // Several operations round each step; products of matrices do so with their rows' size.
    const double whole =
        one_round() || n == 0 ? 0 : 8 * *std::max_element(size.begin(), size.end());
    for (std::size_t i = 0; i < n; ++i) {
      double left = one_round() ? static_cast<double>(world.owner().residual()[i]) : 0.0;
      for (std::size_t r = 0; r < samples.size(); ++r) {
        left +=
            static_cast<double>(samples[r]) / 7 * static_cast<double>(world.rank(r).residual()[i]);
      }
      ASSERT_NEAR(left, missing[i], kSteps * 0x1p-22 * (size[i] + whole))
          << n << " elements, element " << i;
    }
  }
}

TEST_P(CodecConformance, WhatIsRefusedIsCountedAndTakenForZero) {
  constexpr std::array kRefused{std::numeric_limits<float>::quiet_NaN(),
                                std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(),
                                1e30F};
  for (const DType dtype : kCodecTypes) {
    const CodecSegment here = segment(1000, dtype);
    World bad(codec(), here, 1);
    World good(codec(), here, 1);
    for (std::uint64_t step = 0; step < 3; ++step) {
      Floats values = normal(1000, step);
      Floats zeros = values;
      for (std::size_t k = 0; k < kRefused.size(); ++k) {
        values[3 + 331 * k] = kRefused[k];
        zeros[3 + 331 * k] = 0;
      }
      bad.step({conformance::to_memory(dtype, values)}, {1});
      good.step({conformance::to_memory(dtype, zeros)}, {1});
      EXPECT_EQ(bad.refused(), kRefused.size());
      EXPECT_EQ(good.refused(), 0U);
      EXPECT_EQ(bad.encoding(0).value_squares, good.encoding(0).value_squares);
      EXPECT_EQ(bad.encoding(0).left_squares, good.encoding(0).left_squares);
      EXPECT_EQ(bad.wire(0), good.wire(0)) << "step " << step;
      EXPECT_EQ(bad.result_memory(0), good.result_memory(0)) << "step " << step;
      EXPECT_TRUE(same_bits(bad.rank(0).residual(), good.rank(0).residual())) << "step " << step;
      EXPECT_TRUE(all_finite(bad.rank(0).residual()));
      EXPECT_TRUE(all_finite(bad.rank(0).state()));
    }
  }
}

TEST_P(CodecConformance, SquaresAreThoseOfTheValuesAndOfWhatIsLeft) {
  const CodecSegment here = segment(1000);
  World world(codec(), here, 1);
  for (std::uint64_t step = 0; step < 2; ++step) {
    const auto values = gradients(here, 1, step);
    world.step(values, {1});
    const auto squares = [](const Floats& of) {
      double sum = 0;
      for (const float value : of) {
        sum += static_cast<double>(value) * static_cast<double>(value);
      }
      return sum;
    };
    const double expected = squares(conformance::from_memory(here.dtype, values[0]));
    EXPECT_NEAR(world.encoding(0).value_squares, expected, 1e-5 * expected);
    const double left = squares(world.rank(0).residual());
    EXPECT_NEAR(world.encoding(0).left_squares, left, 1e-5 * left);
  }
}

TEST_P(CodecConformance, AStepThatIsAbandonedHasChangedNothing) {
  const CodecSegment here = segment(1000);
  World world(codec(), here, 1);
  World other(codec(), here, 1);
  world.step(gradients(here, 1, 1), {1});
  other.step(gradients(here, 1, 1), {1});
  Bytes wire(codec().most_wire_bytes(here, 0));
  ASSERT_TRUE(
      codec()
          .encode(here, round_of(0, 2), gradients(here, 1, 5)[0], other.rank(0).memory(), wire)
          .has_value());
  world.step(gradients(here, 1, 2), {1});
  other.step(gradients(here, 1, 2), {1});
  EXPECT_EQ(other.wire(0), world.wire(0));
  EXPECT_TRUE(same_bits(other.rank(0).residual(), world.rank(0).residual()));
  EXPECT_TRUE(same_bits(other.rank(0).state(), world.rank(0).state()));
}

}  // namespace stretto::spi

// SPDX-License-Identifier: Apache-2.0
#include "coded_mean.hpp"

#include "codec/factory.hpp"
#include "small_training.hpp"

#include <array>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::cli {
namespace {

constexpr std::size_t kRanks = 3;

std::shared_ptr<const spi::Codec> make(const char* name) {
  auto codec = codec::make_codec(name);
  EXPECT_TRUE(codec.has_value()) << name;
  return codec.value_or(nullptr);
}

std::vector<float> gradients(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(kRanks * count);
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

float mean_of(const std::vector<float>& values, std::size_t i) {
  const std::size_t count = values.size() / kRanks;
  return (values[i] + values[count + i] + values[2 * count + i]) / 3;
}

TEST(CodedMean, WithoutACodecIsTheMean) {
  CodedMean mean(nullptr, 1000, 50, kRanks, 1);
  const auto values = gradients(1000, 1);
  std::vector<float> result(1000);
  ASSERT_TRUE(mean.average(values, result).is_ok());
  for (std::size_t i = 0; i < result.size(); ++i) {
    ASSERT_NEAR(result[i], mean_of(values, i), 1e-6);
  }
  EXPECT_EQ(mean.wire_bytes(), 8000U);
}

TEST(CodedMean, OfALossyCodecIsNearAndSmaller) {
  CodedMean mean(make("fp16"), 40'000, 0, kRanks, 1);  // two segments
  const auto values = gradients(40'000, 1);
  std::vector<float> result(40'000);
  ASSERT_TRUE(mean.average(values, result).is_ok());
  for (std::size_t i = 0; i < result.size(); ++i) {
    ASSERT_NEAR(result[i], mean_of(values, i), 4e-3) << i;
  }
  EXPECT_LT(mean.wire_bytes(), 8U * 40'000 / 1.9);
}

TEST(CodedMean, WhatASignDoesNotSayComesLater) {
  constexpr std::size_t kCount = 300;
  constexpr int kSteps = 2000;
  CodedMean mean(make("sign"), kCount, 0, kRanks, 1);
  const auto values = gradients(kCount, 1);
  std::vector<float> result(kCount);
  std::vector<double> sums(kCount);
  for (int step = 0; step < kSteps; ++step) {
    ASSERT_TRUE(mean.average(values, result).is_ok());
    for (std::size_t i = 0; i < kCount; ++i) {
      sums[i] += static_cast<double>(result[i]) / kSteps;
    }
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_NEAR(sums[i], static_cast<double>(mean_of(values, i)), 0.1) << i;
  }
}

TEST(CodedMean, WhatDoesNotSuitStaysFloat32) {
  CodedMean mean(make("powersgd:4"), 64, 8, kRanks, 1);
  const auto values = gradients(64, 1);
  std::vector<float> result(64);
  ASSERT_TRUE(mean.average(values, result).is_ok());
  EXPECT_NEAR(result[7], mean_of(values, 7), 1e-6);
  EXPECT_EQ(mean.wire_bytes(), 8U * 64);
}

TEST(CodedMean, TwoRoundsComeToAMatrixOfThatRank) {
  constexpr std::size_t kRows = 30;
  constexpr std::size_t kColumns = 40;
  CodedMean mean(make("powersgd:1"), kRows * kColumns, kColumns, kRanks, 1);
  std::vector<float> values(kRanks * kRows * kColumns);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto row = static_cast<float>(i / kColumns % kRows);
    values[i] = (row + 1) * static_cast<float>(i % kColumns + 1);
  }
  std::vector<float> result(kRows * kColumns);
  ASSERT_TRUE(mean.average(values, result).is_ok());
  EXPECT_NEAR(result.back(), 1200, 0.1);
  EXPECT_EQ(mean.wire_bytes(), 2U * 4 * (kRows + kColumns));
}

TEST(CodedMean, SpansOfAnotherLengthAreRefused) {
  CodedMean mean(nullptr, 10, 0, kRanks, 1);
  std::vector<float> result(10);
  EXPECT_EQ(mean.average(std::vector<float>(20), result).code(), StatusCode::kInvalidArgument);
}

SmallTraining quick() {
  SmallTraining training;
  training.steps = 60;
  return training;
}

TEST(SmallTraining, LearnsAndIsTheSameEachTime) {
  const auto first = train_small(quick(), nullptr);
  const auto again = train_small(quick(), nullptr);
  ASSERT_TRUE(first.has_value() && again.has_value());
  EXPECT_GT(first->accuracy, 0.6) << "a guess is right one time in ten";
  EXPECT_EQ(first->loss, again->loss);
}

TEST(SmallTraining, SeedsAndCodecsMatter) {
  const auto plain = train_small(quick(), nullptr);
  SmallTraining other = quick();
  other.seed = 2;
  const auto seeded = train_small(other, nullptr);
  const auto coded = train_small(quick(), make("sign"));
  ASSERT_TRUE(plain.has_value() && seeded.has_value() && coded.has_value());
  EXPECT_NE(plain->loss, seeded->loss);
  EXPECT_NE(plain->loss, coded->loss);
  EXPECT_GT(coded->accuracy, 0.5);
  EXPECT_LT(coded->wire_bytes_per_step, plain->wire_bytes_per_step / 15);
}

}  // namespace
}  // namespace stretto::cli

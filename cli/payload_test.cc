// SPDX-License-Identifier: Apache-2.0
#include "payload.hpp"

#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::cli {
namespace {

const std::vector<std::size_t> kElements{1, 5000, 17};

/// The mean as an exchange would leave it.
std::vector<float> mean_of(std::uint64_t seed,
                           std::size_t ranks,
                           std::size_t parameter,
                           std::uint64_t step) {
  std::vector<float> sum(kElements[parameter], 0.0F);
  std::vector<float> gradient(sum.size());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const Payload payload(seed, rank, ranks, kElements);
    std::memcpy(
        gradient.data(), payload.gradient(parameter, step), gradient.size() * sizeof(float));
    for (std::size_t i = 0; i < sum.size(); ++i) {
      EXPECT_EQ(gradient[i], std::floor(gradient[i]));
      EXPECT_LT(gradient[i], 4096);
      sum[i] += gradient[i];
    }
  }
  for (float& value : sum) {
    value *= static_cast<float>(1.0 / static_cast<double>(ranks));
  }
  return sum;
}

const std::byte* bytes_of(const std::vector<float>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

TEST(Payload, TheMeanOfAllRanksMatches) {
  for (const std::size_t ranks : {1U, 2U, 3U, 5U}) {
    const Payload payload(7, ranks - 1, ranks, kElements);
    for (std::size_t p = 0; p < kElements.size(); ++p) {
      EXPECT_EQ(payload.mismatches(p, 12, bytes_of(mean_of(7, ranks, p, 12))), 0U);
    }
  }
}

TEST(Payload, AnotherStepSeedOrParameterAndALostRankAreNoticed) {
  const Payload payload(7, 0, 3, kElements);
  const auto few = kElements[1] / 100;
  EXPECT_GT(payload.mismatches(1, 12, bytes_of(mean_of(7, 3, 1, 11))), kElements[1] - few);
  EXPECT_GT(payload.mismatches(1, 12, bytes_of(mean_of(8, 3, 1, 12))), kElements[1] - few);
  EXPECT_GT(payload.mismatches(1, 12, bytes_of(mean_of(7, 2, 1, 12))), kElements[1] - few);
  const std::vector<float> zeros(kElements[1], 0.0F);
  EXPECT_GT(payload.mismatches(1, 12, bytes_of(zeros)), kElements[1] - few);
}

TEST(Payload, OneWrongBitIsOneMismatch) {
  const Payload payload(7, 0, 3, kElements);
  auto mean = mean_of(7, 3, 1, 12);
  mean[4999] = std::nextafter(mean[4999], 1e9F);
  EXPECT_EQ(payload.mismatches(1, 12, bytes_of(mean)), 1U);
  mean[0] = NAN;
  EXPECT_EQ(payload.mismatches(1, 12, bytes_of(mean)), 2U);
}

}  // namespace
}  // namespace stretto::cli

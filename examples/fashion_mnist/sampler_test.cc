// SPDX-License-Identifier: Apache-2.0
#include "sampler.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace fashion_mnist {
namespace {

std::vector<std::uint8_t> labels(std::size_t count) {
  std::vector<std::uint8_t> all(count);
  for (std::size_t i = 0; i < count; ++i) {
    all[i] = static_cast<std::uint8_t>(i % 10);
  }
  return all;
}

std::vector<std::uint32_t> copy_of(std::span<const std::uint32_t> batch) {
  return {batch.begin(), batch.end()};
}

TEST(Sampler, RanksShareAnEpochWithoutOverlap) {
  const auto all = labels(107);
  std::multiset<std::uint32_t> seen;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    Sampler sampler(all, Sharding::kMixed, rank, 3, 4, 7);
    ASSERT_EQ(sampler.steps_per_epoch(), 8U);
    for (std::uint64_t step = 8; step < 16; ++step) {
      for (const auto index : sampler.batch_of(step)) {
        seen.insert(index);
      }
    }
  }
  EXPECT_EQ(seen.size(), 96U);
  EXPECT_EQ(std::set<std::uint32_t>(seen.begin(), seen.end()).size(), 96U);
  EXPECT_LT(*seen.rbegin(), 107U);
}

TEST(Sampler, AStepIsTheSameHoweverOneGetsThere) {
  const auto all = labels(100);
  Sampler through(all, Sharding::kMixed, 1, 2, 5, 3);
  for (std::uint64_t step = 0; step < 23; ++step) {
    through.batch_of(step);
  }
  Sampler resumed(all, Sharding::kMixed, 1, 2, 5, 3);
  EXPECT_EQ(copy_of(through.batch_of(23)), copy_of(resumed.batch_of(23)));
}

TEST(Sampler, EpochsAndSeedsDiffer) {
  const auto all = labels(100);
  Sampler one(all, Sharding::kMixed, 0, 1, 50, 1);
  Sampler two(all, Sharding::kMixed, 0, 1, 50, 2);
  EXPECT_NE(copy_of(one.batch_of(0)), copy_of(one.batch_of(2)));
  EXPECT_NE(copy_of(one.batch_of(0)), copy_of(two.batch_of(0)));
}

TEST(Sampler, ByClassARankSeesItsOwnClassesOnly) {
  const auto all = labels(200);
  std::set<std::size_t> classes[2];
  for (std::size_t rank = 0; rank < 2; ++rank) {
    Sampler sampler(all, Sharding::kByClass, rank, 2, 10, 1);
    ASSERT_EQ(sampler.steps_per_epoch(), 10U);
    for (std::uint64_t step = 0; step < 10; ++step) {
      for (const auto index : sampler.batch_of(step)) {
        classes[rank].insert(all[index]);
      }
    }
  }
  EXPECT_EQ(classes[0], (std::set<std::size_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(classes[1], (std::set<std::size_t>{5, 6, 7, 8, 9}));
}

}  // namespace
}  // namespace fashion_mnist

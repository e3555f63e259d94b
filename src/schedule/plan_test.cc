// SPDX-License-Identifier: Apache-2.0
#include "schedule/plan.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include <gtest/gtest.h>

namespace stretto::schedule {
namespace {

std::vector<ParameterSpec> parameters_of(const std::vector<std::int64_t>& counts) {
  std::vector<ParameterSpec> parameters;
  for (const std::int64_t count : counts) {
    parameters.push_back({"p" + std::to_string(parameters.size()), {count}});
  }
  return parameters;
}

/// Every element of every bucket lies in exactly one chunk.
void expect_cover(const Layout& layout, const Plan& plan) {
  std::vector<std::size_t> next(layout.buckets.size(), 0);
  for (const Plan::Chunk& chunk : plan.chunks) {
    EXPECT_GT(chunk.element_count, 0U);
    EXPECT_EQ(chunk.first_element, next[index_of(chunk.bucket)]);
    next[index_of(chunk.bucket)] += chunk.element_count;
  }
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    EXPECT_EQ(next[b], layout.buckets[b].element_count);
  }
}

TEST(Layout, ParametersAreAlignedAndDoNotOverlap) {
  const auto layout = make_layout(parameters_of({1, 0, 17, 16, 3}));
  std::size_t end = 0;
  for (const ParameterId id : layout.order) {
    const auto& place = layout.places[index_of(id)];
    EXPECT_EQ(place.first_element % 16, 0U);
    EXPECT_GE(place.first_element, end);
    end = place.first_element + place.element_count;
  }
  EXPECT_EQ(layout.arena_bytes, 4U * (16 + 0 + 32 + 16 + 16));
}

TEST(Layout, DtypesAndRulesGetBucketsOfTheirOwn) {
  auto parameters = parameters_of({8, 8, 8, 8});
  parameters[1].dtype = DType::kBFloat16;
  parameters[3].rule = Rule::kRootValue;
  const auto layout = make_layout(parameters);
  ASSERT_EQ(layout.buckets.size(), 3U);
  EXPECT_EQ(layout.places[0].bucket, layout.places[2].bucket);
  EXPECT_NE(layout.places[0].bucket, layout.places[1].bucket);
  EXPECT_EQ(layout.buckets[2].rule, Rule::kRootValue);
}

TEST(Plan, CoversEveryElementOnceForRandomModels) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<std::int64_t> counts(random() % 40);
    for (auto& count : counts) {
      count = random() % 3 == 0 ? static_cast<std::int64_t>(random() % 100'000)
                                : static_cast<std::int64_t>(random() % 600);
    }
    auto parameters = parameters_of(counts);
    for (auto& parameter : parameters) {
      parameter.dtype = static_cast<DType>(random() % 3);
    }
    std::vector<std::uint32_t> order(parameters.size());
    std::iota(order.begin(), order.end(), 0U);
    std::shuffle(order.begin(), order.end(), random);
    const auto layout = make_layout(parameters);
    expect_cover(layout, make_plan(layout, {}, 4096));
    expect_cover(layout, make_plan(layout, order, 4096));
  }
}

TEST(Plan, NoChunkIsLargerThanAsked) {
  const auto layout = make_layout(parameters_of({1'000'000, 5, 300}));
  for (const auto& chunk : make_plan(layout, {}, 65536).chunks) {
    EXPECT_LE(chunk.element_count * 4, 65536U);
  }
}

TEST(Plan, SmallNeighboursShareAChunk) {
  const auto layout = make_layout(parameters_of({10, 10, 10, 10}));
  EXPECT_EQ(make_plan(layout, {}, 65536).chunks.size(), 1U);
}

TEST(Plan, ChunkSizeZeroMakesEveryParameterAChunkOfItsOwn) {
  const auto layout = make_layout(parameters_of({10, 0, 3'000'000, 1}));
  const auto plan = make_plan(layout, {}, 0);
  expect_cover(layout, plan);
  ASSERT_EQ(plan.chunks.size(), 3U);  // one has no elements
  EXPECT_EQ(plan.chunks[1].first_element, layout.places[2].first_element);
  EXPECT_EQ(plan.chunks[2].first_element, layout.places[3].first_element);
}

TEST(Plan, EarlyGradientsDoNotWaitForLateNeighbours) {
  const auto layout = make_layout(parameters_of(std::vector<std::int64_t>(16, 64)));
  std::vector<std::uint32_t> order(16);
  std::iota(order.begin(), order.end(), 0U);
  std::swap(order[7], order[15]);  // parameter 7 is the last to appear
  const auto plan = make_plan(layout, order, 65536);
  ASSERT_GE(plan.chunks.size(), 3U);
  EXPECT_EQ(plan.chunks[1].first_element, layout.places[7].first_element);
  EXPECT_EQ(plan.chunks[1].priority, 15U);
}

TEST(Plan, HashDependsOnBoundariesAndTypes) {
  const auto layout = make_layout(parameters_of({1000, 2000}));
  const auto other = make_layout(parameters_of({1000, 3000}));
  EXPECT_EQ(make_plan(layout, {}, 4096).hash, make_plan(layout, {}, 4096).hash);
  EXPECT_NE(make_plan(layout, {}, 4096).hash, make_plan(layout, {}, 2048).hash);
  EXPECT_NE(make_plan(layout, {}, 4096).hash, make_plan(other, {}, 4096).hash);
}

TEST(Plan, DriftIsZeroForTheSameOrderAndOneForAReversedOne) {
  const std::vector<std::uint32_t> order{0, 1, 2, 3};
  const std::vector<std::uint32_t> reversed{3, 2, 1, 0};
  EXPECT_EQ(order_drift(order, order), 0);
  EXPECT_EQ(order_drift(order, reversed), 1);
}

}  // namespace
}  // namespace stretto::schedule

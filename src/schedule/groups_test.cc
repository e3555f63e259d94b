// SPDX-License-Identifier: Apache-2.0
#include "codec/factory.hpp"
#include "schedule/plan.hpp"

#include <algorithm>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace stretto::schedule {
namespace {

std::vector<ParameterSpec> matrices(const std::vector<std::int64_t>& rows) {
  std::vector<ParameterSpec> parameters;
  for (const std::int64_t count : rows) {
    parameters.push_back({"p" + std::to_string(parameters.size()), {count, 64}});
  }
  return parameters;
}

/// Every parameter has the codec, but those whose number is in `plain`.
Coding coding_of(const std::string& codec,
                 std::size_t parameters,
                 std::set<std::size_t> plain = {}) {
  Coding coding;
  coding.codecs.push_back(codec::make_codec(codec).value());
  for (std::size_t p = 0; p < parameters; ++p) {
    coding.of_parameter.push_back(plain.contains(p) ? 0 : 1);
  }
  return coding;
}

Layout grouped(const std::vector<ParameterSpec>& parameters,
               const Coding& coding,
               std::size_t ranks,
               std::size_t message_bytes) {
  Layout layout = make_layout(parameters, std::nullopt, coding);
  make_groups(layout, parameters, coding, ranks, message_bytes);
  return layout;
}

TEST(Groups, CoverEveryElementOfACodedBucketOnce) {
  const auto parameters = matrices({1, 5000, 0, 30, 7, 900});
  for (const std::string codec : {"int8", "sign", "topk:1%", "powersgd:4"}) {
    const auto layout = grouped(parameters, coding_of(codec, 6, {3}), 3, 64 << 10);
    std::size_t next = 0;
    std::size_t coded = 0;
    for (const Layout::Group& group : layout.groups) {
      EXPECT_EQ(group.first_element, next);
      EXPECT_GT(group.element_count, 0U);
      next += group.element_count;
      for (std::size_t s = 0; s < group.segment_count; ++s) {
        const spi::CodedSegment& segment = layout.segments[group.first_segment + s];
        EXPECT_LE(segment.first_element + segment.segment.element_count, group.element_count);
        coded += segment.segment.element_count;
      }
    }
    const Layout::Bucket& bucket = layout.buckets[index_of(layout.groups.front().bucket)];
    EXPECT_EQ(next, bucket.element_count);
    EXPECT_EQ(coded, 64U * (1 + 5000 + 0 + 7 + 900));
  }
}

TEST(Groups, SegmentsDoNotDependOnMessagesOrRanks) {
  const auto parameters = matrices({20'000, 30, 900});
  const auto coding = coding_of("int8", 3);
  const auto few = grouped(parameters, coding, 2, 1 << 20);
  const auto many = grouped(parameters, coding, 5, 8 << 10);
  EXPECT_LT(few.groups.size(), many.groups.size());
  ASSERT_EQ(few.segments.size(), many.segments.size());
  std::set<std::uint64_t> seeds;
  for (std::size_t s = 0; s < few.segments.size(); ++s) {
    EXPECT_EQ(few.segments[s].name, many.segments[s].name);
    EXPECT_EQ(few.segments[s].segment.element_count, many.segments[s].segment.element_count);
    EXPECT_EQ(few.segments[s].segment.seed, many.segments[s].segment.seed);
    seeds.insert(few.segments[s].segment.seed);
  }
  EXPECT_EQ(seeds.size(), few.segments.size());
}

TEST(Groups, OwnersShareTheWiresEvenly) {
  const auto parameters = matrices({40'000, 300, 20'000, 10, 30'000});
  const auto coding = coding_of("int8", 5);
  const auto layout = grouped(parameters, coding, 4, 64 << 10);
  std::vector<std::size_t> owned(4, 0);
  for (const Layout::Group& group : layout.groups) {
    owned[index_of(group.owner)] += group.element_count;
  }
  const auto [least, most] = std::minmax_element(owned.begin(), owned.end());
  EXPECT_GT(static_cast<double>(*least), 0.85 * static_cast<double>(*most));
  // Neighbours have different owners: the first that are ready do not all go to one rank.
  EXPECT_NE(layout.groups[0].owner, layout.groups[1].owner);
}

TEST(Groups, MessagesAreNotCutBelowAFewKilobytes) {
  const auto parameters = matrices({2000});  // a wire of 16 KiB in one bit for each element
  const auto layout = grouped(parameters, coding_of("sign", 1), 8, 1);
  EXPECT_LE(layout.groups.size(), 5U);
}

TEST(Groups, ArePlannedAsChunksAndNewPlansMoveNone) {
  const auto parameters = matrices({500, 30, 900, 40});
  const auto layout = grouped(parameters, coding_of("int8", 4, {1}), 2, 8 << 10);
  const auto first = make_plan(layout, {}, 64 << 10);
  const auto second = make_plan(layout, std::vector<std::uint32_t>{3, 1, 0, 2}, 64 << 10);
  EXPECT_EQ(first.hash, second.hash);
  std::size_t groups = 0;
  for (std::size_t c = 0; c < first.chunks.size(); ++c) {
    EXPECT_EQ(first.chunks[c].group, second.chunks[c].group);
    groups += first.chunks[c].group ? 1 : 0;
  }
  EXPECT_EQ(groups, layout.groups.size());
  const auto plain = make_plan(layout, {}, 64 << 10, false);
  EXPECT_NE(plain.hash, first.hash);
  EXPECT_TRUE(std::none_of(
      plain.chunks.begin(), plain.chunks.end(), [](const auto& chunk) { return chunk.group; }));
}

TEST(Groups, AnotherOwnerIsAnotherPlan) {
  const auto parameters = matrices({500, 900});
  auto layout = grouped(parameters, coding_of("int8", 2), 2, 8 << 10);
  const auto before = make_plan(layout, {}, 64 << 10).hash;
  layout.groups[0].owner = Rank{1 - static_cast<std::uint32_t>(index_of(layout.groups[0].owner))};
  EXPECT_NE(make_plan(layout, {}, 64 << 10).hash, before);
}

}  // namespace
}  // namespace stretto::schedule

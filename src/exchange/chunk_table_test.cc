// SPDX-License-Identifier: Apache-2.0
#include "exchange/chunk_table.hpp"

#include "codec/factory.hpp"

#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::exchange {
namespace {

spi::ChunkSubmission part_of(std::uint32_t chunk,
                             std::size_t first_shard,
                             std::size_t shard_count,
                             std::uint64_t step) {
  spi::ChunkSubmission submission;
  submission.chunk = ChunkId{chunk};
  submission.first_shard = first_shard;
  submission.shard_count = shard_count;
  submission.step = step;
  return submission;
}

/// Chunk 0 in one hop, chunk 1 with a shard for each of four ranks, chunk 2 without elements.
ChunkTable table_of_three() {
  const std::vector<spi::ChunkDescription> chunks{
      {BucketId{0}, DType::kFloat32, 10, spi::Combine::kMean},
      {BucketId{0}, DType::kFloat32, 1000, spi::Combine::kMean},
      {BucketId{0}, DType::kFloat32, 0, spi::Combine::kMean}};
  return ChunkTable::make(chunks, 4, 64);
}

TEST(ChunkTable, CountsTheShardsThatASubmissionNames) {
  const ChunkTable table = table_of_three();
  const auto never = [](std::size_t, std::uint64_t) { return false; };
  EXPECT_EQ(table.check(part_of(0, 0, 0, 1), 0, never).value(), 1U);
  EXPECT_EQ(table.check(part_of(1, 0, 0, 1), 1, never).value(), 4U);
  EXPECT_EQ(table.check(part_of(1, 1, 0, 1), 1, never).value(), 3U);
  EXPECT_EQ(table.check(part_of(1, 1, 2, 2), 1, never).value(), 2U);
  EXPECT_EQ(table.check(part_of(2, 0, 0, 1), 1, never).value(), 0U);
}

TEST(ChunkTable, AmongCodedChunksASmallOneHasAnOwner) {
  const auto codec = codec::make_codec("sign");
  ASSERT_TRUE(codec.has_value());
  spi::ChunkDescription coded{BucketId{0}, DType::kFloat32, 1000, spi::Combine::kMean};
  coded.codec = codec->get();
  coded.owner = Rank{2};
  const spi::ChunkDescription plain{BucketId{1}, DType::kFloat32, 100, spi::Combine::kMean};
  const std::vector<spi::ChunkDescription> both{coded, plain};
  const ChunkTable table = ChunkTable::make(both, 4, 1024);
  for (const std::size_t chunk : {0U, 1U}) {
    EXPECT_FALSE(table.chunk(chunk).one_hop);
    EXPECT_EQ(table.chunk(chunk).shard_count, 1U) << "one message to the owner, one back";
  }
  EXPECT_EQ(ChunkTable::make(both, 4, 256).chunk(1).shard_count, 4U) << "no longer small";
  EXPECT_TRUE(ChunkTable::make(both, 4, SIZE_MAX).chunk(1).one_hop) << "the all-gather form";
  EXPECT_TRUE(ChunkTable::make(std::vector{plain}, 4, 1024).chunk(0).one_hop);
}

TEST(ChunkTable, RefusesWhatIsNotInThePlanOrDoesNotFollow) {
  const ChunkTable table = table_of_three();
  const auto never = [](std::size_t, std::uint64_t) { return false; };
  const auto code = [&](const spi::ChunkSubmission& submission) {
    const auto count = table.check(submission, 5, never);
    return count ? StatusCode::kOk : count.error().code();
  };
  EXPECT_EQ(code(part_of(1, 0, 0, 5)), StatusCode::kOk);
  EXPECT_EQ(code(part_of(1, 4, 0, 6)), StatusCode::kOk) << "none from the end on";
  EXPECT_EQ(code(part_of(3, 0, 0, 5)), StatusCode::kInvalidArgument) << "no such chunk";
  EXPECT_EQ(code(part_of(1, 5, 0, 5)), StatusCode::kInvalidArgument) << "no such shard";
  EXPECT_EQ(code(part_of(1, 3, 2, 5)), StatusCode::kInvalidArgument) << "beyond the last shard";
  EXPECT_EQ(code(part_of(1, 1, SIZE_MAX, 5)), StatusCode::kInvalidArgument) << "and no overflow";
  EXPECT_EQ(code(part_of(1, 0, 0, 4)), StatusCode::kInvalidArgument) << "a step that is over";
  EXPECT_EQ(code(part_of(1, 0, 0, 7)), StatusCode::kInvalidArgument) << "a step left out";
}

TEST(ChunkTable, RefusesAShardThatCameBeforeInThisStep) {
  const ChunkTable table = table_of_three();
  const std::set<std::pair<std::size_t, std::uint64_t>> came{{2, 5}};  // shard 1 of chunk 1
  const auto submitted = [&](std::size_t shard, std::uint64_t step) {
    return came.count({shard, step}) > 0;
  };
  EXPECT_TRUE(table.check(part_of(1, 0, 1, 5), 5, submitted).has_value());
  EXPECT_TRUE(table.check(part_of(1, 2, 0, 5), 5, submitted).has_value());
  EXPECT_TRUE(table.check(part_of(1, 0, 0, 6), 5, submitted).has_value());
  const auto twice = table.check(part_of(1, 0, 0, 5), 5, submitted);
  ASSERT_FALSE(twice.has_value());
  EXPECT_EQ(twice.error().message(), "chunk 1 was submitted twice in step 5");
}

TEST(ChunkTable, ARankBeginsWithTheShardOfTheNext) {
  const ChunkTable table = table_of_three();
  for (std::uint32_t own = 0; own < 4; ++own) {
    std::vector<std::size_t> served;
    const auto serve = [&](std::size_t shard) {
      served.push_back(shard);
      return Status();
    };
    ASSERT_TRUE(table.in_rotation(part_of(1, 0, 0, 1), 4, Rank{own}, serve).is_ok());
    ASSERT_EQ(served.size(), 4U);
    EXPECT_EQ(table.owner(table.chunk(1).first_shard + served.front()), Rank{(own + 1) % 4});
    EXPECT_EQ(table.owner(table.chunk(1).first_shard + served.back()), Rank{own});
    served.clear();
    ASSERT_TRUE(table.in_rotation(part_of(1, 1, 2, 1), 2, Rank{own}, serve).is_ok());
    EXPECT_EQ(std::set<std::size_t>(served.begin(), served.end()), (std::set<std::size_t>{1, 2}));
  }
}

TEST(ChunkTable, TheFirstErrorEndsTheRotation) {
  const ChunkTable table = table_of_three();
  int calls = 0;
  const Status status = table.in_rotation(part_of(1, 0, 0, 1), 4, Rank{0}, [&](std::size_t) {
    ++calls;
    return Status(StatusCode::kPeerLost, "gone");
  });
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_EQ(calls, 1);
}

TEST(ChunkTable, ShardsCoverAChunkAtMultiplesOf64Bytes) {
  const ChunkTable table = table_of_three();
  std::size_t next = 0;
  for (std::size_t shard = 0; shard < table.shards_of(ChunkId{1}); ++shard) {
    const auto range = table.shard_range(ChunkId{1}, shard);
    EXPECT_EQ(range.first, next);
    EXPECT_EQ(range.first * sizeof(float) % 64, 0U);
    next += range.count;
  }
  EXPECT_EQ(next, 1000U);
  EXPECT_EQ(table.shards_of(ChunkId{2}), 0U);
}

}  // namespace
}  // namespace stretto::exchange

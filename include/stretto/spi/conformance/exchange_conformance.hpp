// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/conformance/exchange_world.hpp"
#include "stretto/spi/conformance/repetition.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>

// What every implementation of spi::Exchange has to do.  Use:
//
//   INSTANTIATE_TEST_SUITE_P(Mine, ExchangeConformance,
//                            testing::Combine(testing::Values(ExchangeHarness{"mine", make_mine}),
//                                             testing::ValuesIn(kExchangeSizes)),
//                            exchange_test_name);

namespace stretto::spi::conformance {

/// One exchange under test.
struct ExchangeHarness {
  std::string name;  ///< letters, digits and underscores
  std::function<Result<std::vector<ExchangeEnd>>(std::size_t size)> make;
};
inline void PrintTo(const ExchangeHarness& harness, std::ostream* out) {
  *out << harness.name;
}

inline constexpr std::array<std::size_t, 7> kExchangeSizes{1, 2, 3, 4, 5, 7, 8};

using ExchangeParameters = std::tuple<ExchangeHarness, std::size_t>;
inline std::string exchange_test_name(const testing::TestParamInfo<ExchangeParameters>& test) {
  return std::get<0>(test.param).name + "_" + std::to_string(std::get<1>(test.param)) + "_ranks";
}

/// The suite.  Each case is named after the sentence of the contract that it checks.
class ExchangeConformance : public testing::TestWithParam<ExchangeParameters> {
 protected:
  using Memory = ExchangeWorld::Memory;

  void SetUp() override {
    auto made = std::get<0>(GetParam()).make(std::get<1>(GetParam()));
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    ASSERT_EQ(made->size(), std::get<1>(GetParam()));
    world_ = std::make_unique<ExchangeWorld>(std::move(*made), 20'261'129U);
  }

  static std::vector<ChunkDescription> chunks_of(const std::vector<std::size_t>& sizes,
                                                 const std::vector<DType>& dtypes) {
    std::vector<ChunkDescription> chunks;
    std::uint32_t bucket = 0;
    for (const DType dtype : dtypes) {
      for (const std::size_t size : sizes) {
        chunks.push_back({BucketId{bucket}, dtype, size, Combine::kMean});
      }
      ++bucket;
    }
    return chunks;
  }
  static std::vector<DType> all_types() {
    return {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  }
  /// Polls all ranks until nobody has news for a while.
  void settle() {
    for (int quiet = 0; quiet < 50; ++quiet) {
      for (std::size_t r = 0; r < world_->size(); ++r) {
        if (world_->poll(r) > 0) {
          quiet = 0;
        }
      }
    }
  }
  void submit_all(std::size_t rank) {
    world_->open_step(rank);
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    while (!world_->rank(rank).left.empty() && !deadline.passed()) {
      if (!world_->submit_one(rank)) {
        world_->poll(rank);
      }
    }
    ASSERT_TRUE(world_->rank(rank).left.empty());
  }
  void finish(std::size_t rank) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    while (!world_->step_done(rank) && !deadline.passed()) {
      for (std::size_t r = 0; r < world_->size(); ++r) {
        world_->poll(r);
      }
    }
    ASSERT_TRUE(world_->step_done(rank));
    world_->close_step(rank);
  }

  std::unique_ptr<ExchangeWorld> world_;
};

TEST_P(ExchangeConformance, EveryRankGetsTheMeanOfAllForEverySizeAndType) {
  const std::vector<std::size_t> sizes{
      0, 1, 3, 15, 16, 17, 1023, 1024, 1025, 2047, 2048, 2049, 4099, 33'333};
  world_->configure(chunks_of(sizes, all_types()), 7, Memory::kArena);
  world_->play(2);
}

TEST_P(ExchangeConformance, ShardsCoverEachChunkOnce) {
  world_->configure(chunks_of({0, 1, 17, 5000, 100'003}, all_types()), 7, Memory::kArena);
  for (std::size_t c = 0; c < world_->chunks().size(); ++c) {
    const ChunkId id = ExchangeWorld::id_of(c);
    for (std::size_t r = 0; r < world_->size(); ++r) {
      std::size_t next = 0;
      for (std::size_t s = 0; s < world_->exchange(r).shards_of(id); ++s) {
        const auto range = world_->exchange(r).shard_range(id, s);
        EXPECT_EQ(range.first, next);
        EXPECT_GT(range.count, 0U);
        next += range.count;
      }
      EXPECT_EQ(next, world_->chunks()[c].element_count);
    }
  }
}

TEST_P(ExchangeConformance, SamplesAreWeightsAndNoneAddsNothing) {
  world_->configure(chunks_of({1, 100, 9001}, {DType::kFloat32}), 7, Memory::kArena);
  // Step 1: uneven; step 2: only the last rank; step 3: nobody, so that the result is zero.
  world_->samples = [size = world_->size()](std::size_t rank, std::uint64_t step) {
    if (step == 1) {
      return static_cast<std::uint64_t>((rank * 3 + 2) % 4);
    }
    return step == 2 && rank + 1 == size ? std::uint64_t{5} : std::uint64_t{0};
  };
  world_->play(3);
}

TEST_P(ExchangeConformance, SumsAreNotDivided) {
  auto chunks = chunks_of({1, 100, 9001}, all_types());
  for (ChunkDescription& chunk : chunks) {
    chunk.combine = Combine::kSum;
  }
  world_->configure(std::move(chunks), 7, Memory::kArena);
  world_->play(2);
}

TEST_P(ExchangeConformance, ManyStepsInRandomOrderOverwriteNothingThatIsStillRead) {
  world_->configure(chunks_of({4099, 64, 30'011, 1, 777}, {DType::kFloat32, DType::kBFloat16}),
                    7,
                    Memory::kArena);
  world_->play(3 * kRepetition);
}

TEST_P(ExchangeConformance, MemoryFromElsewhereIsLegal) {
  world_->configure(chunks_of({3, 4099, 20'000}, all_types()), 7, Memory::kPlain);
  world_->play(4);
}

TEST_P(ExchangeConformance, AFastRankMayBeInTheNextStep) {
  world_->configure(chunks_of({10, 70'000}, {DType::kFloat32}), 7, Memory::kArena);
  const std::size_t last = world_->size() - 1;
  for (std::size_t r = 0; r < world_->size(); ++r) {
    submit_all(r);
  }
  // Everybody's results come home, but only rank 0 looks at them and goes on.
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  while (!world_->step_done(0) && !deadline.passed()) {
    for (std::size_t r = 0; r < world_->size(); ++r) {
      world_->poll(r);
    }
  }
  world_->close_step(0);
  submit_all(0);
  for (std::size_t r = 1; r <= last; ++r) {
    finish(r);
  }
  for (std::size_t r = last; r > 0; --r) {
    submit_all(r);
  }
  for (std::size_t r = 0; r <= last; ++r) {
    finish(r);
  }
}

TEST_P(ExchangeConformance, PendingNamesWhoHasNotSentAndWhoOwns) {
  world_->configure(chunks_of({70'000, 30}, {DType::kFloat32}), 7, Memory::kArena);
  const std::size_t last = world_->size() - 1;
  if (last == 0) {
    return;
  }
  const Rank missing{static_cast<std::uint32_t>(last)};
  for (std::size_t r = 0; r < last; ++r) {
    submit_all(r);
  }
  settle();
  for (std::size_t r = 0; r < last; ++r) {
    const auto pending = world_->exchange(r).pending();
    EXPECT_EQ(pending.size(), world_->shard_count());
    for (const PendingShard& shard : pending) {
      EXPECT_EQ(shard.step, 1U);
      ASSERT_EQ(shard.missing.size(), 1U) << "rank " << r;
      if (shard.reduced_here) {
        EXPECT_EQ(shard.missing[0], missing);
      }
    }
  }
  submit_all(last);
  for (std::size_t r = 0; r <= last; ++r) {
    finish(r);
    EXPECT_TRUE(world_->exchange(r).pending().empty());
  }
}

TEST_P(ExchangeConformance, WhatIsNotInThePlanOrCameBeforeIsRefused) {
  world_->configure(chunks_of({5000, 30}, {DType::kFloat32}), 7, Memory::kArena);
  for (std::size_t r = 0; r < world_->size(); ++r) {
    submit_all(r);
  }
  Exchange& exchange = world_->exchange(0);
  ChunkSubmission again;
  again.step = 1;
  again.contribution = world_->rank(0).contributions;
  again.result = world_->rank(0).results;
  EXPECT_EQ(exchange.submit(again).code(), StatusCode::kInvalidArgument) << "twice in a step";
  again.step = 3;
  EXPECT_EQ(exchange.submit(again).code(), StatusCode::kInvalidArgument) << "a step left out";
  again.step = 2;
  again.chunk = ChunkId{99};
  EXPECT_EQ(exchange.submit(again).code(), StatusCode::kInvalidArgument) << "no such chunk";
  again.chunk = ChunkId{0};
  again.first_shard = 99;
  EXPECT_EQ(exchange.submit(again).code(), StatusCode::kInvalidArgument) << "no such shard";
  for (std::size_t r = 0; r < world_->size(); ++r) {
    finish(r);  // and nothing of it did harm
  }
}

TEST_P(ExchangeConformance, ASleepingRankIsWokenByItsDescriptor) {
  world_->configure(chunks_of({40'000, 64, 3}, {DType::kFloat32}), 7, Memory::kArena);
  // Each rank polls; without news it sleeps as a progress thread does.  Nobody may sleep for ever.
  for (std::size_t r = 0; r < world_->size(); ++r) {
    world_->open_step(r);
  }
  std::vector<int> timed_out(world_->size(), 0);
  for_every_rank(world_->size(), [&](std::size_t r) {
    while (world_->submit_one(r)) {
    }
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    while (!world_->step_done(r) && !deadline.passed()) {
      if (world_->poll(r) > 0) {
        continue;
      }
      const TimePoint due = world_->exchange(r).next_due();
      if (due <= Clock::now()) {
        continue;
      }
      pollfd descriptor{world_->exchange(r).descriptor(), POLLIN, 0};
      const bool bounded = due != TimePoint::max();
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(due - Clock::now());
      const int wait = bounded ? static_cast<int>(left.count()) + 1 : 10'000;
      if (::poll(&descriptor, 1, wait) == 0 && !bounded) {
        ++timed_out[r];
      }
    }
  });
  for (std::size_t r = 0; r < world_->size(); ++r) {
    EXPECT_EQ(timed_out[r], 0) << "rank " << r;
    ASSERT_TRUE(world_->step_done(r)) << "rank " << r;
    world_->close_step(r);
  }
}

TEST_P(ExchangeConformance, ThePlanMayChangeWhileNothingIsInFlight) {
  world_->configure(chunks_of({5000, 30}, {DType::kFloat32}), 7, Memory::kArena);
  world_->play(3);
  world_->configure(chunks_of({31, 20'000, 4}, {DType::kBFloat16}), 8, Memory::kArena);
  world_->play(3);
}

}  // namespace stretto::spi::conformance

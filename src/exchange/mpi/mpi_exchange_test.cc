// SPDX-License-Identifier: Apache-2.0
// What ExchangeConformance asks of exchanges whose ranks live in one process is asked here of ranks
// that are processes: with_mpirun.sh starts them.  All play the same steps; each checks its own
// results, which are exact, for contributions are small whole numbers.
#include "device/cpu/factory.hpp"
#include "exchange/mpi/factory.hpp"

#include "stretto/group.hpp"
#include "stretto/spi/conformance/exchange_world.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::exchange {
namespace {

using spi::ChunkDescription;
using spi::Combine;
using spi::conformance::store_value;

std::shared_ptr<Group> group;  // NOLINT: joined once, by main

float value_of(std::size_t rank, std::size_t chunk, std::uint64_t step, std::size_t i) {
  return static_cast<float>(static_cast<int>((rank * 5 + chunk * 3 + step * 7 + i) % 29) - 14);
}

class MpiExchangeTest : public ::testing::Test {
 protected:
  using Samples = std::uint64_t (*)(std::size_t rank, std::uint64_t step);

  std::size_t own() const { return index_of(group->rank()); }

  void make(std::size_t threads, std::vector<ChunkDescription> chunks) {
    device_ = device::make_cpu_device(threads).value();
    auto made = make_mpi_exchange(group->control(), *device_, {});
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    exchange_ = std::move(*made);
    EXPECT_EQ(exchange_->traits().order, spi::SumOrder::kNative);
    configure(std::move(chunks));
  }

  void configure(std::vector<ChunkDescription> chunks) {
    chunks_ = std::move(chunks);
    contributions_.clear();
    results_.clear();
    for (const ChunkDescription& chunk : chunks_) {
      contributions_.emplace_back(chunk.element_count * size_of(chunk.dtype));
      results_.emplace_back(chunk.element_count * size_of(chunk.dtype));
    }
    const Status configured = exchange_->configure(chunks_, 7, 1);
    ASSERT_TRUE(configured.is_ok()) << configured.to_string();
  }

  /// One step; each rank submits in an order of its own.
  void play(std::uint64_t step, Samples samples, bool in_place = false) {
    std::vector<std::size_t> order(chunks_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    const std::uint64_t mine = samples(own(), step);
    std::size_t events_to_come = 0;
    for (const std::size_t c : order) {
      fill(c, step, mine);
      if (chunks_[c].element_count == 0) {
        continue;
      }
      events_to_come += 2;
      spi::ChunkSubmission submission;
      submission.step = step;
      submission.chunk = ChunkId{static_cast<std::uint32_t>(c)};
      submission.contribution = mine == 0 ? nullptr : contributions_[c].data();
      submission.result = in_place ? contributions_[c].data() : results_[c].data();
      submission.samples = mine;
      const Status submitted = exchange_->submit(submission);
      ASSERT_TRUE(submitted.is_ok()) << submitted.to_string();
      poll(events_to_come, samples, step);
    }
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    while (events_to_come > 0 && !deadline.passed() && !HasFatalFailure()) {
      poll(events_to_come, samples, step);
      std::this_thread::yield();
    }
    ASSERT_EQ(events_to_come, 0U);
    EXPECT_TRUE(exchange_->pending().empty());
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      check(c, step, samples, in_place ? contributions_[c] : results_[c]);
    }
  }

  std::unique_ptr<spi::Device> device_;
  std::unique_ptr<spi::Exchange> exchange_;
  std::vector<ChunkDescription> chunks_;

 private:
  void fill(std::size_t c, std::uint64_t step, std::uint64_t mine) {
    for (std::size_t i = 0; i < chunks_[c].element_count; ++i) {
      // Without samples a contribution means nothing, whatever it holds.
      store_value(chunks_[c].dtype,
                  contributions_[c].data(),
                  i,
                  mine == 0 ? 3e3F : value_of(own(), c, step, i));
    }
  }

  static std::uint64_t total_of(Samples samples, std::uint64_t step) {
    std::uint64_t total = 0;
    for (std::size_t rank = 0; rank < group->size(); ++rank) {
      total += samples(rank, step);
    }
    return total;
  }

  void poll(std::size_t& events_to_come, Samples samples, std::uint64_t step) {
    std::array<spi::ExchangeEvent, 5> events;
    const auto count = exchange_->poll(events);
    ASSERT_TRUE(count.has_value()) << count.error().to_string();
    for (std::size_t i = 0; i < *count; ++i) {
      EXPECT_EQ(events[i].step, step);
      EXPECT_EQ(events[i].samples, total_of(samples, step));
    }
    events_to_come -= *count;
  }

  void check(std::size_t c,
             std::uint64_t step,
             Samples samples,
             const std::vector<std::byte>& result) {
    const ChunkDescription& chunk = chunks_[c];
    const std::uint64_t total = total_of(samples, step);
    const bool is_mean = chunk.combine == Combine::kMean && total > 0;
    const float scale = is_mean ? static_cast<float>(1.0 / static_cast<double>(total)) : 1.0F;
    const std::size_t width = size_of(chunk.dtype);
    for (std::size_t i = 0; i < chunk.element_count; ++i) {
      float sum = 0;
      for (std::size_t rank = 0; rank < group->size(); ++rank) {
        sum += static_cast<float>(samples(rank, step)) * value_of(rank, c, step, i);
      }
      std::array<std::byte, 4> expected{};
      store_value(chunk.dtype, expected.data(), 0, sum * scale);
      ASSERT_EQ(std::memcmp(result.data() + i * width, expected.data(), width), 0)
          << "step " << step << ", chunk " << c << ", element " << i;
    }
  }

  std::vector<std::vector<std::byte>> contributions_;
  std::vector<std::vector<std::byte>> results_;
  std::mt19937 random_{static_cast<unsigned>(own()) + 1};
};

std::vector<ChunkDescription> chunks_of(const std::vector<std::size_t>& sizes,
                                        Combine combine = Combine::kMean) {
  std::vector<ChunkDescription> chunks;
  std::uint32_t bucket = 0;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const std::size_t size : sizes) {
      chunks.push_back({BucketId{bucket}, dtype, size, combine});
    }
    ++bucket;
  }
  return chunks;
}

std::uint64_t one(std::size_t /*rank*/, std::uint64_t /*step*/) {
  return 1;
}
/// Uneven; in step 2 only the last rank; in step 3 nobody, so that the result is zero.
std::uint64_t uneven(std::size_t rank, std::uint64_t step) {
  if (step == 1) {
    return (rank * 3 + 2) % 4;
  }
  return step == 2 && rank + 1 == group->size() ? 5 : 0;
}
/// More than float32 can count.
std::uint64_t many(std::size_t rank, std::uint64_t /*step*/) {
  return (std::uint64_t{1} << 40) + rank;
}

TEST_F(MpiExchangeTest, EveryRankGetsTheMeanOfAllInWhateverOrderTheySubmit) {
  make(0, chunks_of({0, 1, 3, 17, 1023, 2048, 33'333}));
  for (std::uint64_t step = 1; step <= 10; ++step) {
    play(step, one);
  }
}

TEST_F(MpiExchangeTest, SamplesAreWeightsAndNoneAddsNothing) {
  make(2, chunks_of({1, 100, 9001}));
  for (std::uint64_t step = 1; step <= 3; ++step) {
    play(step, uneven);
  }
}

TEST_F(MpiExchangeTest, SumsAreNotDividedAndMayComeInPlace) {
  make(0, chunks_of({1, 100, 9001}, Combine::kSum));
  play(1, one, true);
  play(2, one, true);
}

TEST_F(MpiExchangeTest, CountsOfSamplesAreExact) {
  make(0, {{BucketId{0}, DType::kFloat32, 0, Combine::kMean}});
  configure({{BucketId{0}, DType::kBFloat16, 1, Combine::kMean}});
  spi::ChunkSubmission submission;
  const std::array<std::byte, 2> contribution{};
  std::array<std::byte, 2> result{};
  submission.step = 1;
  submission.contribution = contribution.data();
  submission.result = result.data();
  submission.samples = many(own(), 1);
  ASSERT_TRUE(exchange_->submit(submission).is_ok());
  std::uint64_t total = 0;
  for (std::size_t rank = 0; rank < group->size(); ++rank) {
    total += many(rank, 1);
  }
  std::size_t came = 0;
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  while (came < 2 && !deadline.passed()) {
    std::array<spi::ExchangeEvent, 2> events;
    const std::size_t count = exchange_->poll(events).value();
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(events[i].samples, total);
    }
    came += count;
  }
  EXPECT_EQ(came, 2U);
}

TEST_F(MpiExchangeTest, ThePlanMayChangeAndWhatIsNotInItIsRefused) {
  make(0, chunks_of({5000, 30}));
  play(1, one);
  configure(chunks_of({31, 20'000}));
  play(2, one);
  spi::ChunkSubmission wrong;
  wrong.step = 2;
  EXPECT_EQ(exchange_->submit(wrong).code(), StatusCode::kInvalidArgument) << "twice in a step";
  wrong.step = 4;
  EXPECT_EQ(exchange_->submit(wrong).code(), StatusCode::kInvalidArgument) << "a step left out";
  wrong.step = 3;
  wrong.chunk = ChunkId{99};
  EXPECT_EQ(exchange_->submit(wrong).code(), StatusCode::kInvalidArgument) << "no such chunk";
  play(3, one);
}

}  // namespace
}  // namespace stretto::exchange

int main(int count, char** arguments) {
  ::testing::InitGoogleTest(&count, arguments);
  const auto options = stretto::GroupOptions::from_environment();
  auto joined =
      options ? stretto::Group::join(*options)
              : stretto::Result<std::shared_ptr<stretto::Group>>(stretto::fail(options.error()));
  if (!joined) {
    std::fprintf(stderr, "%s\n", joined.error().to_string().c_str());
    return 3;
  }
  stretto::exchange::group = *joined;
  const int failed = RUN_ALL_TESTS();
  stretto::exchange::group->leave();
  return failed;
}

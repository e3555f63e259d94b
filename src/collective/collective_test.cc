// SPDX-License-Identifier: Apache-2.0
#include "stretto/collective.hpp"

#include "tests/threads_as_ranks.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace stretto {
namespace {

using testing::run_ranks;

Deadline soon() {
  return Deadline::after(std::chrono::seconds(30));
}

/// Where a rank's memory comes from.
enum class From { kArena, kUser, kEither };

/// Memory of one kind; the others of the group call it together.
class Floats {
 public:
  Floats(Communicator& communicator, From from, std::size_t count) : user_(count + 1) {
    auto arena = communicator.allocate(count * sizeof(float));
    EXPECT_TRUE(arena.has_value()) << arena.error().to_string();
    arena_ = std::move(*arena);
    // kEither: ranks differ, so that one side reads in place and the other through the staging
    // area.
    const bool use_arena =
        from == From::kArena || (from == From::kEither && communicator.rank() % 2 == 0);
    data_ = use_arena ? reinterpret_cast<float*>(arena_->data()) : user_.data() + 1;
  }
  float* data() const noexcept { return data_; }
  std::byte* bytes() const noexcept { return reinterpret_cast<std::byte*>(data_); }

 private:
  std::vector<float> user_;
  std::unique_ptr<spi::Buffer> arena_;
  float* data_ = nullptr;
};

float value(std::size_t rank, std::size_t i) {
  return static_cast<float>((rank * 37 + i * 11) % 251);
}

using Parameters = std::tuple<std::size_t, ExchangeKind, From>;

class CollectiveRanks : public ::testing::TestWithParam<Parameters> {
 protected:
  /// Runs a body on every rank with a communicator of the kind under test.
  static void run(const std::function<void(Communicator&)>& body) {
    run_ranks(std::get<0>(GetParam()), [&](const std::shared_ptr<Group>& group) {
      EngineOptions options;
      options.exchange = std::get<1>(GetParam());
      options.order = OrderChoice::kAny;
      options.chunk_bytes = 64 << 10;
      auto made = Communicator::create(group, options);
      ASSERT_TRUE(made.has_value()) << made.error().to_string();
      EXPECT_EQ((*made)->exchange_name(), to_string(options.exchange));
      body(**made);
      // Nobody leaves while another still waits.
      auto last = (*made)->barrier();
      ASSERT_TRUE(last.has_value());
      EXPECT_TRUE(last->wait(soon()).is_ok());
    });
  }
  static From from() { return std::get<2>(GetParam()); }
};

const std::vector<std::size_t> kCounts{0, 1, 3, 15, 16, 17, 4095, 4099, 70'001, 300'007};

TEST_P(CollectiveRanks, AllReduceInPlaceGivesTheSumToAll) {
  run([](Communicator& communicator) {
    for (const std::size_t count : kCounts) {
      Floats data(communicator, from(), count);
      for (int repeat = 0; repeat < 3; ++repeat) {
        for (std::size_t i = 0; i < count; ++i) {
          data.data()[i] = value(communicator.rank(), i);
        }
        auto sum = communicator.all_reduce(
            data.bytes(), data.bytes(), count, DType::kFloat32, Reduction::kSum);
        ASSERT_TRUE(sum.has_value());
        const Status status = sum->wait(soon());
        ASSERT_TRUE(status.is_ok()) << status.to_string();
        for (std::size_t i = 0; i < count; ++i) {
          float expected = 0;
          for (std::size_t r = 0; r < communicator.size(); ++r) {
            expected += value(r, i);
          }
          ASSERT_EQ(data.data()[i], expected) << count << " elements, element " << i;
        }
      }
    }
  });
}

TEST_P(CollectiveRanks, AllReduceToOtherMemoryLeavesTheInput) {
  run([](Communicator& communicator) {
    constexpr std::size_t kCount = 50'001;
    Floats input(communicator, from(), kCount);
    Floats output(communicator, from(), kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      input.data()[i] = value(communicator.rank(), i);
    }
    auto mean = communicator.all_reduce(
        input.bytes(), output.bytes(), kCount, DType::kFloat32, Reduction::kMean);
    ASSERT_TRUE(mean.has_value());
    ASSERT_TRUE(mean->wait(soon()).is_ok());
    const auto scale = static_cast<float>(1.0 / static_cast<double>(communicator.size()));
    for (std::size_t i = 0; i < kCount; ++i) {
      float expected = 0;
      for (std::size_t r = 0; r < communicator.size(); ++r) {
        expected += value(r, i);
      }
      ASSERT_EQ(output.data()[i], expected * scale) << i;
      ASSERT_EQ(input.data()[i], value(communicator.rank(), i));
    }
  });
}

TEST_P(CollectiveRanks, SixteenBitValuesAreAddedInFloat32AndRoundedOnce) {
  run([](Communicator& communicator) {
    // 2049 rounds to 2048 in float16: only a sum in float32 tells 2048 + 1 + 1 from 2048.
    constexpr std::size_t kCount = 5003;
    auto arena = communicator.allocate(2 * kCount);
    ASSERT_TRUE(arena.has_value());
    auto* halves = reinterpret_cast<std::uint16_t*>((*arena)->data());
    const std::uint16_t first = 0x6800;  // 2048
    const std::uint16_t one = 0x3C00;
    std::fill_n(halves, kCount, communicator.rank() == 0 ? first : one);
    auto sum = communicator.all_reduce(
        (*arena)->data(), (*arena)->data(), kCount, DType::kFloat16, Reduction::kSum);
    ASSERT_TRUE(sum.has_value());
    ASSERT_TRUE(sum->wait(soon()).is_ok());
    // Between 2048 and 4096 the distance is 2; halves go to the even neighbour.
    const std::size_t ones = communicator.size() - 1;
    const std::size_t up = ones % 4 == 3 ? ones + 1 : ones / 2 * 2;
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(halves[i], first + up / 2) << i;
    }
  });
}

TEST_P(CollectiveRanks, ReduceScatterAllGatherAndBroadcast) {
  run([](Communicator& communicator) {
    const std::size_t ranks = communicator.size();
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{33'333}}) {
      Floats all(communicator, from(), ranks * count);
      Floats part(communicator, from(), count);
      for (std::size_t i = 0; i < ranks * count; ++i) {
        all.data()[i] = value(communicator.rank(), i);
      }
      auto scattered = communicator.reduce_scatter(
          all.bytes(), part.bytes(), count, DType::kFloat32, Reduction::kSum);
      ASSERT_TRUE(scattered.has_value());
      const Status status = scattered->wait(soon());
      ASSERT_TRUE(status.is_ok()) << status.to_string();
      auto gathered = communicator.all_gather(part.bytes(), all.bytes(), count * sizeof(float));
      ASSERT_TRUE(gathered.has_value());
      ASSERT_TRUE(gathered->wait(soon()).is_ok());
      for (std::size_t i = 0; i < ranks * count; ++i) {
        float expected = 0;
        for (std::size_t r = 0; r < ranks; ++r) {
          expected += value(r, i);
        }
        ASSERT_EQ(all.data()[i], expected) << i;
      }
      const std::size_t root = ranks - 1;
      for (std::size_t i = 0; i < count; ++i) {
        part.data()[i] = value(communicator.rank() + 100, i);
      }
      auto sent = communicator.broadcast(part.bytes(), count * sizeof(float), root);
      ASSERT_TRUE(sent.has_value());
      ASSERT_TRUE(sent->wait(soon()).is_ok());
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(part.data()[i], value(root + 100, i)) << i;
      }
    }
  });
}

TEST_P(CollectiveRanks, SeveralMayBeUnderWay) {
  run([](Communicator& communicator) {
    constexpr std::size_t kCount = 20'000;
    std::vector<std::unique_ptr<Floats>> data;
    std::vector<Collective> handles;
    for (std::size_t k = 0; k < 8; ++k) {
      data.push_back(std::make_unique<Floats>(communicator, from(), kCount));
      std::fill_n(data.back()->data(), kCount, static_cast<float>(k));
    }
    for (auto& each : data) {
      auto sum = communicator.all_reduce(
          each->bytes(), each->bytes(), kCount, DType::kFloat32, Reduction::kSum);
      ASSERT_TRUE(sum.has_value());
      handles.push_back(*sum);
    }
    ASSERT_TRUE(handles.back().wait(soon()).is_ok());
    for (std::size_t k = 0; k < 8; ++k) {
      EXPECT_TRUE(handles[k].done());
      EXPECT_EQ(data[k]->data()[kCount - 1], static_cast<float>(k * communicator.size()));
    }
  });
}

TEST_P(CollectiveRanks, MessagesOfAPairArriveInOrder) {
  run([](Communicator& communicator) {
    // Everyone sends to everyone, in pieces and whole, empty ones too, while a sum is under way.
    const std::vector<std::size_t> counts{0, 1, 20'000, 300'007, 3};
    std::vector<std::vector<float>> out;
    std::vector<std::vector<float>> in;
    std::vector<Collective> handles;
    std::vector<float> data(1000, 1.0F);
    auto* sum_bytes = reinterpret_cast<std::byte*>(data.data());
    auto sum =
        communicator.all_reduce(sum_bytes, sum_bytes, 1000, DType::kFloat32, Reduction::kSum);
    ASSERT_TRUE(sum.has_value());
    for (std::size_t peer = 0; peer < communicator.size(); ++peer) {
      for (std::size_t k = 0; peer != communicator.rank() && k < counts.size(); ++k) {
        out.emplace_back(counts[k], static_cast<float>(communicator.rank() * 100 + peer * 10 + k));
        in.emplace_back(counts[k], -1.0F);
        const std::size_t bytes = counts[k] * sizeof(float);
        auto sent =
            communicator.send(reinterpret_cast<const std::byte*>(out.back().data()), bytes, peer);
        auto received =
            communicator.receive(reinterpret_cast<std::byte*>(in.back().data()), bytes, peer);
        ASSERT_TRUE(sent.has_value() && received.has_value());
        handles.push_back(*sent);
        handles.push_back(*received);
      }
    }
    for (Collective& handle : handles) {
      const Status status = handle.wait(soon());
      ASSERT_TRUE(status.is_ok()) << status.to_string();
    }
    ASSERT_TRUE(sum->wait(soon()).is_ok());
    EXPECT_EQ(data[999], static_cast<float>(communicator.size()));
    std::size_t at = 0;
    for (std::size_t peer = 0; peer < communicator.size(); ++peer) {
      for (std::size_t k = 0; peer != communicator.rank() && k < counts.size(); ++k, ++at) {
        const auto expected = static_cast<float>(peer * 100 + communicator.rank() * 10 + k);
        EXPECT_TRUE(std::all_of(
            in[at].begin(), in[at].end(), [&](float value) { return value == expected; }))
            << "message " << k << " of rank " << peer;
      }
    }
    EXPECT_FALSE(communicator.send(nullptr, 0, communicator.rank()).has_value());
    EXPECT_FALSE(communicator.send(nullptr, 0, communicator.size()).has_value());
  });
}

INSTANTIATE_TEST_SUITE_P(
    Host,
    CollectiveRanks,
    ::testing::Combine(::testing::Values(1, 2, 3, 4, 5, 8),
                       ::testing::Values(ExchangeKind::kShared),
                       ::testing::Values(From::kArena, From::kUser, From::kEither)));
INSTANTIATE_TEST_SUITE_P(Transport,
                         CollectiveRanks,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5, 8),
                                            ::testing::Values(ExchangeKind::kOwner),
                                            ::testing::Values(From::kUser)));
INSTANTIATE_TEST_SUITE_P(Ring,
                         CollectiveRanks,
                         ::testing::Combine(::testing::Values(3),
                                            ::testing::Values(ExchangeKind::kRing),
                                            ::testing::Values(From::kUser)));

class CollectiveFailures : public ::testing::TestWithParam<ExchangeKind> {};

TEST_P(CollectiveFailures, RanksThatCallDifferentlyAreTold) {
  run_ranks(2, [](const std::shared_ptr<Group>& group) {
    EngineOptions options;
    options.exchange = GetParam();
    auto communicator = Communicator::create(group, options).value();
    std::vector<float> data(200, 1.0F);
    const std::size_t count = communicator->rank() == 0 ? 100 : 200;
    auto* bytes = reinterpret_cast<std::byte*>(data.data());
    auto sum = communicator->all_reduce(bytes, bytes, count, DType::kFloat32, Reduction::kSum);
    ASSERT_TRUE(sum.has_value());
    const Status status = sum->wait(soon());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
    const std::string own = std::to_string(count) + " elements";
    EXPECT_NE(status.message().find(own), std::string::npos) << status.to_string();
    EXPECT_FALSE(communicator->barrier().has_value()) << "the first error stays";
  });
}

TEST_P(CollectiveFailures, AWaitEndsAtItsDeadlineAndTheCollectiveGoesOn) {
  run_ranks(2, [](const std::shared_ptr<Group>& group) {
    EngineOptions options;
    options.exchange = GetParam();
    auto communicator = Communicator::create(group, options).value();
    std::vector<float> data(100, 1.0F);
    auto* bytes = reinterpret_cast<std::byte*>(data.data());
    // A first one, so that both ranks know the shape.
    ASSERT_TRUE(communicator->all_reduce(bytes, bytes, 100, DType::kFloat32, Reduction::kSum)
                    ->wait(soon())
                    .is_ok());
    Result<Collective> sum;
    if (communicator->rank() == 0) {
      sum = communicator->all_reduce(bytes, bytes, 100, DType::kFloat32, Reduction::kSum);
      const Status status = sum->wait(Deadline::after(std::chrono::milliseconds(20)));
      EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
    }
    ASSERT_TRUE(group->control().all_gather("a test", {}, soon()).has_value());
    if (communicator->rank() == 1) {
      sum = communicator->all_reduce(bytes, bytes, 100, DType::kFloat32, Reduction::kSum);
    }
    ASSERT_TRUE(sum->wait(soon()).is_ok());
    EXPECT_EQ(data[99], 4.0F);
    ASSERT_TRUE(group->control().all_gather("a test", {}, soon()).has_value());
  });
}

/// The sum of 1000 ones of every rank, in an arena; all ranks call it together.
void expect_sum_in_arena(Communicator& communicator, std::size_t arena_bytes) {
  auto arena = communicator.allocate(arena_bytes);
  ASSERT_TRUE(arena.has_value()) << arena.error().to_string();
  auto* data = reinterpret_cast<float*>((*arena)->data());
  std::fill_n(data, 1000, 1.0F);
  auto sum = communicator.all_reduce(
      (*arena)->data(), (*arena)->data(), 1000, DType::kFloat32, Reduction::kSum);
  ASSERT_TRUE(sum.has_value()) << sum.error().to_string();
  const Status status = sum->wait(soon());
  ASSERT_TRUE(status.is_ok()) << status.to_string();
  EXPECT_EQ(std::count(data, data + 1000, static_cast<float>(communicator.size())), 1000);
}

EngineOptions shared_memory() {
  EngineOptions options;
  options.exchange = ExchangeKind::kShared;
  return options;
}

TEST(CollectiveArenas, AnArenaThatOneRankCannotMakeIsOnNoRank) {
  run_ranks(3, [](const std::shared_ptr<Group>& group) {
    auto communicator = Communicator::create(group, shared_memory()).value();
    const std::size_t bytes = communicator->rank() == 1 ? SIZE_MAX - 8192 : std::size_t{1} << 20;
    for (int repeat = 0; repeat < 2; ++repeat) {
      auto failed = communicator->allocate(bytes);
      ASSERT_FALSE(failed.has_value());
      EXPECT_NE(failed.error().message().find("rank 1 cannot share"), std::string_view::npos)
          << failed.error().to_string();
      expect_sum_in_arena(*communicator, 4000);
    }
    EXPECT_TRUE(group->control().all_gather("the end", {}, soon()).has_value());
  });
}

std::size_t shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:stretto") != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST(CollectiveArenas, AFreedArenaIsUnmappedEverywhere) {
  std::size_t early = 0;
  std::size_t late = 0;
  run_ranks(3, [&](const std::shared_ptr<Group>& group) {
    auto communicator = Communicator::create(group, shared_memory()).value();
    const auto all_are_here = [&] {
      EXPECT_TRUE(group->control().all_gather("a turn", {}, soon()).has_value());
    };
    for (int turn = 1; turn <= 20; ++turn) {
      expect_sum_in_arena(*communicator, std::size_t{1} << 20);
      all_are_here();
      if (communicator->rank() == 0 && (turn == 2 || turn == 20)) {
        (turn == 2 ? early : late) = shared_mappings();
      }
      all_are_here();
    }
  });
  EXPECT_GT(early, 0U);
  EXPECT_EQ(early, late);
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         CollectiveFailures,
                         ::testing::Values(ExchangeKind::kShared, ExchangeKind::kOwner));

}  // namespace
}  // namespace stretto

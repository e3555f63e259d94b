// SPDX-License-Identifier: Apache-2.0
// What collectives through a transport promise beyond collective_test: over sockets and links too,
// in pieces, with shapes in turn, and clear words when ranks call differently.
#include "base/mutex.hpp"
#include "collective/call.hpp"
#include "collective/plan_gate.hpp"
#include "tests/threads_as_ranks.hpp"
#include "transport/inproc/inproc_transport.hpp"

#include "stretto/collective.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
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

std::byte* bytes_of(std::vector<float>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

Status finish(Result<Collective> started) {
  return started ? started->wait(soon()) : started.error();
}

EngineOptions through(const std::string& transport) {
  EngineOptions options;
  options.exchange = ExchangeKind::kOwner;
  options.transport = transport;
  options.chunk_bytes = 64 << 10;
  return options;
}

class TransportCollectives : public ::testing::TestWithParam<std::string> {
 protected:
  static void run(std::size_t ranks, const std::function<void(Communicator&)>& body) {
    run_ranks(ranks, [&](const std::shared_ptr<Group>& group) {
      auto made = Communicator::create(group, through(GetParam()));
      ASSERT_TRUE(made.has_value()) << made.error().to_string();
      body(**made);
      EXPECT_TRUE(group->control().all_gather("the end", {}, soon()).has_value());
    });
  }
};

TEST_P(TransportCollectives, BroadcastInPiecesComesFromEveryRoot) {
  for (const std::size_t ranks : {2U, 3U, 5U}) {
    run(ranks, [](Communicator& communicator) {
      // One piece, several with a short last one, fewer pieces than ranks.
      for (const std::size_t count : {1'000U, 20'000U, 300'007U}) {
        for (std::size_t root = 0; root < communicator.size(); ++root) {
          std::vector<float> data(count, -1.0F);
          for (std::size_t i = 0; communicator.rank() == root && i < count; ++i) {
            data[i] = static_cast<float>(root * 7 + i);
          }
          const Status status =
              finish(communicator.broadcast(bytes_of(data), count * sizeof(float), root));
          ASSERT_TRUE(status.is_ok()) << status.to_string();
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(data[i], static_cast<float>(root * 7 + i)) << "from " << root << " at " << i;
          }
        }
      }
    });
  }
}

TEST_P(TransportCollectives, ABarrierEndsOnlyWhenAllHaveStartedIt) {
  for (const std::size_t ranks : {2U, 3U, 4U, 5U}) {
    std::atomic<std::size_t> started{0};
    run(ranks, [&](Communicator& communicator) {
      for (std::size_t round = 1; round <= 20; ++round) {
        ++started;
        ASSERT_TRUE(finish(communicator.barrier()).is_ok());
        EXPECT_GE(started.load(), round * communicator.size());
      }
    });
  }
}

TEST_P(TransportCollectives, ShapesInTurnNeedNoMeeting) {
  run(3, [](Communicator& communicator) {
    // A rank may run ahead into the next shape; none may be added to what it was not meant for.
    std::vector<std::vector<float>> data;
    std::vector<Collective> handles;
    const std::vector<std::size_t> counts{100'000, 1, 40'000, 0, 7, 100'000};
    for (std::size_t k = 0; k < 60; ++k) {
      data.emplace_back(counts[k % counts.size()], static_cast<float>(k + communicator.rank()));
      auto sum = communicator.all_reduce(bytes_of(data.back()),
                                         bytes_of(data.back()),
                                         data.back().size(),
                                         DType::kFloat32,
                                         k % 4 == 1 ? Reduction::kMean : Reduction::kSum);
      ASSERT_TRUE(sum.has_value());
      handles.push_back(*sum);
      if (k % 7 == 0) {
        handles.push_back(communicator.barrier().value());
      }
    }
    const Status status = handles.back().wait(soon());
    ASSERT_TRUE(status.is_ok()) << status.to_string();
    ASSERT_TRUE(finish(communicator.barrier()).is_ok());
    for (std::size_t k = 0; k < data.size(); ++k) {
      const auto sum = static_cast<float>(3 * k + 3);
      const float expected = k % 4 == 1 ? sum * (1.0F / 3.0F) : sum;
      EXPECT_TRUE(std::all_of(
          data[k].begin(), data[k].end(), [&](float value) { return value == expected; }))
          << "collective " << k;
    }
  });
}

TEST_P(TransportCollectives, AMessageEndsOnlyWithItsOwnBytes) {
  // A message without bytes ends at once; the one before it has not even been granted.
  run(2, [](Communicator& communicator) {
    const std::vector<std::size_t> counts{300'007, 0, 40'000, 0};
    const std::size_t peer = 1 - communicator.rank();
    std::vector<std::vector<float>> out;
    std::vector<std::vector<float>> in;
    std::vector<Collective> sent;
    std::vector<Collective> received;
    for (std::size_t k = 0; k < counts.size(); ++k) {
      out.emplace_back(counts[k], static_cast<float>(10 * communicator.rank() + k));
      in.emplace_back(counts[k], -1.0F);
      const std::size_t bytes = counts[k] * sizeof(float);
      sent.push_back(communicator.send(bytes_of(out[k]), bytes, peer).value());
      received.push_back(communicator.receive(bytes_of(in[k]), bytes, peer).value());
    }
    for (std::size_t k = 0; k < counts.size(); ++k) {
      ASSERT_TRUE(received[k].wait(soon()).is_ok());
      const auto expected = static_cast<float>(10 * peer + k);
      ASSERT_TRUE(
          std::all_of(in[k].begin(), in[k].end(), [&](float value) { return value == expected; }))
          << "message " << k;
      ASSERT_TRUE(sent[k].wait(soon()).is_ok());
      std::fill(out[k].begin(), out[k].end(), -2.0F);  // the memory is the sender's again
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Over,
                         TransportCollectives,
                         ::testing::Values("inproc", "tcp"),
                         [](const auto& name) { return name.param; });

/// Sets a variable of the environment while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

/// Something that happens once.
class Moment {
 public:
  void come() {
    const MutexLock lock(mutex_);
    came_ = true;
    changed_.notify_all();
  }
  /// Whether it came before the deadline.
  bool wait(Deadline deadline) {
    const MutexLock lock(mutex_);
    while (!came_ && !deadline.passed()) {
      changed_.wait_until(mutex_, deadline.when());
    }
    return came_;
  }

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  bool came_ STRETTO_GUARDED_BY(mutex_) = false;
};

TEST(TransportCollectives, WhoClosesFirstTakesNothingAway) {
  // Less than a window, and more than lies in the socket of one that does not read: the rest waits
  // in the sender's.
  const Variable window("STRETTO_WINDOW", "1m");
  constexpr std::size_t kCount = 45'000;
  Moment announced;
  Moment accepted;
  Moment sent;
  Moment gone;
  run_ranks(2, [&](const std::shared_ptr<Group>& group) {
    auto communicator = Communicator::create(group, through("tcp")).value();
    std::vector<float> data(kCount, communicator->rank() == 0 ? 5.0F : 0.0F);
    if (communicator->rank() == 0) {
      auto handle = communicator->send(bytes_of(data), 4 * kCount, 1).value();
      EXPECT_FALSE(handle.done());
      announced.come();
      EXPECT_TRUE(accepted.wait(soon()));
      EXPECT_TRUE(handle.wait(soon()).is_ok());
      sent.come();
      const Status closed = communicator->close(soon());
      EXPECT_TRUE(closed.is_ok()) << closed.to_string();
      EXPECT_FALSE(communicator->barrier().has_value()) << "it is closed";
      EXPECT_TRUE(communicator->close(soon()).is_ok()) << "a second time is no error";
      communicator.reset();
      gone.come();
    } else {
      auto handle = communicator->receive(bytes_of(data), 4 * kCount, 0).value();
      EXPECT_TRUE(announced.wait(soon()));
      static_cast<void>(handle.done());
      accepted.come();
      const Deadline deadline = soon();
      while (!sent.wait(Deadline::after(std::chrono::milliseconds(200))) && !deadline.passed()) {
        static_cast<void>(handle.done());
      }
      // Whoever does not wait for this rank is gone by now; then this frame meets a closed socket.
      static_cast<void>(gone.wait(Deadline::after(std::chrono::milliseconds(500))));
      EXPECT_TRUE(communicator->send(nullptr, 0, 0).has_value());
      const Status status = handle.wait(soon());
      EXPECT_TRUE(status.is_ok()) << status.to_string();
      EXPECT_EQ(std::count(data.begin(), data.end(), 5.0F), static_cast<std::ptrdiff_t>(kCount));
    }
    EXPECT_TRUE(group->control().all_gather("the end", {}, soon()).has_value());
  });
}

TEST(TransportCollectives, GoOverAnEmulatedLink) {
  run_ranks(3, [](const std::shared_ptr<Group>& group) {
    EngineOptions options = through("auto");
    options.link.bytes_per_second = 50e6;
    options.link.delay = std::chrono::microseconds(100);
    auto communicator = Communicator::create(group, options).value();
    std::vector<float> data(100'000, communicator->rank() == 1 ? 5.0F : 0.0F);
    ASSERT_TRUE(finish(communicator->broadcast(bytes_of(data), 400'000, 1)).is_ok());
    EXPECT_EQ(std::count(data.begin(), data.end(), 5.0F), 100'000);
    ASSERT_TRUE(finish(communicator->barrier()).is_ok());
    EXPECT_TRUE(group->control().all_gather("the end", {}, soon()).has_value());
  });
}

/// What one rank calls in place of the others' call, and how both read in an error.
struct Pair {
  std::string name;
  std::function<Result<Collective>(Communicator&, std::byte*)> usual;
  std::string usual_words;
  std::function<Result<Collective>(Communicator&, std::byte*)> odd;
  std::string odd_words;
};

class DifferentCalls
    : public ::testing::TestWithParam<std::tuple<Pair, ExchangeKind, std::size_t>> {};

TEST_P(DifferentCalls, AreToldToAllByRankAndCall) {
  const auto& [pair, exchange, ranks] = GetParam();
  for (std::size_t odd = 0; odd < ranks; ++odd) {
    run_ranks(
        ranks,
        [&, &pair = pair, exchange = exchange, ranks = ranks](const std::shared_ptr<Group>& group) {
          EngineOptions options;
          options.exchange = exchange;
          auto communicator = Communicator::create(group, options).value();
          std::vector<float> data(ranks * 100'000, 1.0F);
          ASSERT_TRUE(finish(communicator->barrier()).is_ok());
          const bool is_odd = communicator->rank() == odd;
          Status status = finish((is_odd ? pair.odd : pair.usual)(*communicator, bytes_of(data)));
          if (status.is_ok()) {
            // What it did ended before it heard of the other; the next one cannot.
            status = finish(communicator->all_gather(bytes_of(data), bytes_of(data), 4));
          }
          EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
          const std::string text(status.message());
          EXPECT_NE(text.find(pair.usual_words), std::string::npos) << text;
          EXPECT_NE(text.find(pair.odd_words), std::string::npos) << text;
          EXPECT_NE(text.find("rank " + std::to_string(odd)), std::string::npos) << text;
          EXPECT_FALSE(communicator->barrier().has_value()) << "the first error stays";
        });
  }
}

const std::vector<Pair> kPairs{
    {"lengths",
     [](Communicator& c, std::byte* data) {
       return c.all_reduce(data, data, 100, DType::kFloat32, Reduction::kSum);
     },
     "all_reduce of 100 elements of float32 (sum)",
     [](Communicator& c, std::byte* data) {
       return c.all_reduce(data, data, 101, DType::kFloat32, Reduction::kSum);
     },
     "all_reduce of 101 elements of float32 (sum)"},
    {"reductions",
     [](Communicator& c, std::byte* data) {
       return c.all_reduce(data, data, 100, DType::kBFloat16, Reduction::kSum);
     },
     "all_reduce of 100 elements of bfloat16 (sum)",
     [](Communicator& c, std::byte* data) {
       return c.all_reduce(data, data, 100, DType::kBFloat16, Reduction::kMean);
     },
     "all_reduce of 100 elements of bfloat16 (mean)"},
    {"roots",
     [](Communicator& c, std::byte* data) { return c.broadcast(data, 100'000, 0); },
     "broadcast of 100000 bytes from rank 0",
     [](Communicator& c, std::byte* data) { return c.broadcast(data, 100'000, 1); },
     "broadcast of 100000 bytes from rank 1"},
    {"kinds",
     [](Communicator& c, std::byte* data) {
       return c.all_reduce(data, data, 100'000, DType::kFloat32, Reduction::kSum);
     },
     "all_reduce of 100000 elements of float32 (sum)",
     [](Communicator& c, std::byte* data) { return c.all_gather(data, data, 7'000); },
     "all_gather of 7000 bytes"},
    {"nothing_to_move",
     [](Communicator& c, std::byte* data) { return c.broadcast(data, 0, 1); },
     "broadcast of 0 bytes from rank 1",
     [](Communicator& c, std::byte*) { return c.barrier(); },
     "barrier"}};

INSTANTIATE_TEST_SUITE_P(Ranks,
                         DifferentCalls,
                         ::testing::Combine(::testing::ValuesIn(kPairs),
                                            ::testing::Values(ExchangeKind::kShared,
                                                              ExchangeKind::kOwner),
                                            ::testing::Values(2, 3, 5)),
                         [](const auto& given) {
                           return std::get<0>(given.param).name + "_" +
                                  std::string(to_string(std::get<1>(given.param))) + "_" +
                                  std::to_string(std::get<2>(given.param));
                         });

// An owner with less room than the others think would never take what they send without asking.
TEST(Communicators, RanksWithOtherOptionsAreRefusedByNameAndValue) {
  run_ranks(3, [](const std::shared_ptr<Group>& group) {
    EngineOptions options = through("inproc");
    options.scratch_bytes = index_of(group->rank()) == 2 ? 1 : 4096;
    const auto made = Communicator::create(group, options);
    ASSERT_FALSE(made.has_value());
    EXPECT_EQ(made.error().to_string(),
              "invalid argument: the scratch size of a communicator is 4096 on rank 0 and 1 on "
              "rank 2; all ranks must create it with the same options");
  });
}

TEST(TransportCollectives, AChunkSizeOfZeroIsTheDefaultAndNotAnElementEach) {
  EngineOptions options = through("inproc");
  options.chunk_bytes = 0;
  EXPECT_EQ(collective::for_collectives(options).chunk_bytes, EngineOptions::kAutomatic);
  EXPECT_EQ(collective::for_collectives(through("inproc")).chunk_bytes, std::size_t{64} << 10);
  run_ranks(3, [&](const std::shared_ptr<Group>& group) {
    auto communicator = Communicator::create(group, options).value();
    std::vector<float> data(3'000'001, 1.0F);
    const Status summed = finish(communicator->all_reduce(
        bytes_of(data), bytes_of(data), data.size(), DType::kFloat32, Reduction::kSum));
    ASSERT_TRUE(summed.is_ok()) << summed.to_string();
    EXPECT_TRUE(std::all_of(data.begin(), data.end(), [](float value) { return value == 3.0F; }));
    const Status told =
        finish(communicator->broadcast(bytes_of(data), data.size() * sizeof(float), 1));
    ASSERT_TRUE(told.is_ok()) << told.to_string();
    EXPECT_TRUE(group->control().all_gather("the end", {}, soon()).has_value());
  });
}

TEST(PlanGate, KeepsAnnouncementsOfTheNextPlanUntilItIsOpened) {
  auto ends = transport::make_inproc_transports(2).value();
  collective::PlanGate gate(std::move(ends[1]));
  gate.open(1, 11);
  const auto announce = [&](std::uint32_t epoch, std::uint64_t hash, std::uint32_t chunk) {
    spi::MessageHeader header;
    header.epoch = epoch;
    header.plan_hash = hash;
    header.chunk = chunk;
    EXPECT_TRUE(ends[0]->announce(Rank{1}, header, {}, 0).is_ok());
  };
  announce(2, 22, 0);
  announce(1, 11, 1);
  announce(2, 99, 2);  // of a rank that calls differently: never
  announce(2, 22, 3);
  std::vector<spi::TransportEvent> events(8);
  ASSERT_EQ(gate.poll(events).value(), 1U);
  EXPECT_EQ(events[0].header.chunk, 1U);
  EXPECT_EQ(gate.poll(events).value(), 0U);
  gate.open(2, 22);
  EXPECT_LE(gate.next_due(), Clock::now());
  ASSERT_EQ(gate.poll(events).value(), 2U);
  EXPECT_EQ(events[0].header.chunk, 0U);
  EXPECT_EQ(events[1].header.chunk, 3U);
  gate.open(3, 33);
  EXPECT_EQ(gate.poll(events).value(), 0U);
}

}  // namespace
}  // namespace stretto

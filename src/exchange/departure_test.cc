// SPDX-License-Identifier: Apache-2.0
// Ranks that leave, and ranks that repeat themselves: what the owner and the ring make of it.
#include "device/cpu/factory.hpp"
#include "exchange/factory.hpp"
#include "transport/inproc/inproc_transport.hpp"

#include <array>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::exchange {
namespace {

constexpr std::size_t kElements = 300;
constexpr std::uint64_t kPlan = 7;
constexpr std::uint32_t kEpoch = 1;

struct Kind {
  std::string name;
  std::function<Result<std::unique_ptr<spi::Exchange>>(spi::Transport&, spi::Device&)> make;
};

Kind owner_kind(const char* name, std::size_t one_hop_bytes) {
  return {name, [=](spi::Transport& transport, spi::Device& device) {
            OwnerOptions options;
            options.one_hop_bytes = one_hop_bytes;
            return make_owner_exchange(transport, device, options);
          }};
}

Kind ring_kind() {
  return {"ring", [](spi::Transport& transport, spi::Device& device) {
            return make_ring_exchange(transport, device, RingOptions{});
          }};
}

/// One rank: its end of the network, and what it has seen of one chunk.
struct End {
  std::vector<float> contribution = std::vector<float>(kElements, 1.0F);
  std::vector<float> result = std::vector<float>(kElements, 0.0F);
  std::unique_ptr<spi::Exchange> exchange;
  std::unique_ptr<spi::Transport> transport;  // ends first
  std::size_t released = 0;
  std::size_t home = 0;

  std::size_t shards() const { return exchange->shards_of(ChunkId{0}); }
  bool is_done() const { return released == shards() && home == shards(); }

  Status submit(std::uint64_t step) {
    spi::ChunkSubmission submission;
    submission.step = step;
    submission.contribution = reinterpret_cast<const std::byte*>(contribution.data());
    submission.result = reinterpret_cast<std::byte*>(result.data());
    return exchange->submit(submission);
  }
  Status poll() {
    std::array<spi::ExchangeEvent, 16> events;
    STRETTO_TRY_ASSIGN(const std::size_t count, exchange->poll(events));
    for (std::size_t i = 0; i < count; ++i) {
      ++(events[i].kind == spi::ExchangeEvent::Kind::kResult ? home : released);
    }
    return {};
  }
};

class Departure : public ::testing::TestWithParam<Kind> {
 protected:
  std::vector<End> make(std::size_t ranks) {
    // A window of one message, so that the ranks get done in many orders.
    auto transports = transport::make_inproc_transports(ranks, {.window_bytes = 64}).value();
    std::vector<End> ends(ranks);
    const std::vector<spi::ChunkDescription> chunks{{BucketId{0}, DType::kFloat32, kElements, {}}};
    for (std::size_t r = 0; r < ranks; ++r) {
      ends[r].transport = std::move(transports[r]);
      ends[r].exchange = GetParam().make(*ends[r].transport, *device_).value();
      EXPECT_TRUE(ends[r].exchange->configure(chunks, kPlan, kEpoch).is_ok());
    }
    return ends;
  }

  /// Polls in a random order until rank 0 is done and leaves, then the others until they are done.
  /// Returns whether rank 0 left before another was done.
  bool run_and_leave_early(unsigned seed) {
    std::mt19937 random(seed);
    std::vector<End> ends = make(3);
    for (End& end : ends) {
      EXPECT_TRUE(end.submit(1).is_ok());
    }
    while (!ends[0].is_done()) {
      EXPECT_TRUE(ends[random() % 3].poll().is_ok());
    }
    const bool early = !ends[1].is_done() || !ends[2].is_done();
    ends[0].exchange.reset();
    ends[0].transport.reset();
    for (int turn = 0; turn < 1000 && !(ends[1].is_done() && ends[2].is_done()); ++turn) {
      for (const std::size_t rank : {1U, 2U}) {
        const Status status = ends[rank].poll();
        EXPECT_TRUE(status.is_ok()) << "seed " << seed << ": " << status.to_string();
      }
    }
    EXPECT_TRUE(ends[1].is_done() && ends[2].is_done()) << "seed " << seed;
    EXPECT_EQ(ends[1].result, std::vector<float>(kElements, 1.0F));
    // It is missed in the next step.
    Status status = ends[1].submit(2);
    for (int turn = 0; turn < 1000 && status.is_ok(); ++turn) {
      status = ends[1].poll();
    }
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
    return early;
  }

 private:
  std::unique_ptr<spi::Device> device_ = device::make_cpu_device(0).value();
};

TEST_P(Departure, ARankThatIsDoneMayLeaveBeforeTheOthers) {
  std::size_t early = 0;
  for (unsigned seed = 1; seed <= 50 && !HasFailure(); ++seed) {
    early += run_and_leave_early(seed) ? 1 : 0;
  }
  EXPECT_GT(early, 0U);
}

TEST_P(Departure, ARankThatLeavesWhileSomethingIsOwedIsNamed) {
  std::vector<End> ends = make(3);
  for (const std::size_t rank : {0U, 1U}) {
    EXPECT_TRUE(ends[rank].submit(1).is_ok());
  }
  ends[2].exchange.reset();
  ends[2].transport.reset();
  for (const std::size_t rank : {0U, 1U}) {
    Status status;
    for (int turn = 0; turn < 1000 && status.is_ok(); ++turn) {
      status = ends[rank].poll();
    }
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    // In a ring rank 0 and rank 1 both are neighbours of rank 2.
    EXPECT_NE(status.to_string().find("rank 2"), std::string::npos) << status.to_string();
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         Departure,
                         ::testing::Values(owner_kind("owner", 0),
                                           owner_kind("one_hop", SIZE_MAX),
                                           ring_kind()),
                         [](const auto& given) { return given.param.name; });

class Repetition : public Departure {};

// Parts are checked for it by the conformance suite.
TEST_P(Repetition, AResultThatComesTwiceIsRefused) {
  std::vector<End> ends = make(2);
  ends[0].exchange.reset();  // what rank 0 says from here on is made up
  ASSERT_TRUE(ends[1].submit(1).is_ok());
  ASSERT_TRUE(ends[1].poll().is_ok());
  const auto range = ends[1].exchange->shard_range(ChunkId{0}, 0);
  const std::vector<std::byte> payload(range.count * sizeof(float));
  spi::MessageHeader header;
  header.step = 1;
  header.plan_hash = kPlan;
  header.epoch = kEpoch;
  header.samples = 2;
  header.element_count = range.count;
  header.payload_bytes = payload.size();
  header.stage = spi::Stage::kResult;
  header.dtype = DType::kFloat32;
  ASSERT_TRUE(ends[0].transport->announce(Rank{1}, header, payload, 1).is_ok());
  ASSERT_TRUE(ends[0].transport->announce(Rank{1}, header, payload, 2).is_ok());
  Status status;
  for (int turn = 0; turn < 1000 && status.is_ok(); ++turn) {
    status = ends[1].poll();
  }
  EXPECT_EQ(status.code(), StatusCode::kCorruptWire) << status.to_string();
  EXPECT_NE(status.to_string().find("nobody waits for"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         Repetition,
                         ::testing::Values(owner_kind("owner", 0), ring_kind()),
                         [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace stretto::exchange

// SPDX-License-Identifier: Apache-2.0
#include "transport/decorators/faulty_transport.hpp"

#include "transport/inproc/inproc_transport.hpp"

#include "stretto/spi/conformance/transport_endpoint.hpp"

#include <array>
#include <bit>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::transport {
namespace {

using spi::MessageHeader;
using spi::TransportEvent;
using spi::conformance::Endpoint;
using spi::conformance::rank_at;

/// Three ranks, rank 1 of which has faults; everyone sends to everyone.
class Trio {
 public:
  explicit Trio(const FaultPlan& plan) {
    auto transports = make_inproc_transports(3, {1000, 1000, 4096}).value();
    transports[1] = make_faulty_transport(std::move(transports[1]), plan);
    for (auto& transport : transports) {
      ends_.push_back(std::make_unique<Endpoint>(std::move(transport), plan.seed));
    }
  }
  void run() {
    for (std::size_t from = 0; from < 3; ++from) {
      for (int i = 0; i < 4; ++i) {
        ends_[from]->send(rank_at((from + 1) % 3), 3000);
        ends_[from]->send(rank_at((from + 2) % 3), 3000);
      }
    }
    for (int round = 0; round < 300; ++round) {
      for (auto& end : ends_) {
        end->turn();
        end->accept_all();
      }
    }
  }
  Endpoint& at(std::size_t rank) { return *ends_[rank]; }

 private:
  std::vector<std::unique_ptr<Endpoint>> ends_;
};

TEST(FaultyTransport, DyingAtAnyOperationIsOneLossToEveryOtherRank) {
  std::size_t deaths = 0;
  for (std::size_t k = 0; k < 50; ++k) {
    FaultPlan plan;
    plan.die_at = k;
    SCOPED_TRACE(plan.describe());
    Trio trio(plan);
    trio.run();
    const std::size_t seen = trio.at(0).losses_of(rank_at(1));
    deaths += seen;
    for (const std::size_t other : {0U, 2U}) {
      EXPECT_EQ(trio.at(other).losses_of(rank_at(1)), seen);
      EXPECT_EQ(trio.at(1).losses_of(rank_at(other)), seen);
      EXPECT_EQ(trio.at(other).complaint(), "");
      EXPECT_EQ(trio.at(other).unsent(), 0U);
    }
    EXPECT_EQ(trio.at(0).received_from(rank_at(2)).size(), 4U) << "the others go on";
    EXPECT_EQ(trio.at(2).received_from(rank_at(0)).size(), 4U);
    EXPECT_EQ(trio.at(1).complaint(), "");
  }
  // 8 announced, 8 accepted, 24 events: 40 operations.
  EXPECT_EQ(deaths, 40U);
}

TEST(FaultyTransport, LosingOnePeerAtAnyOperationLeavesTheOther) {
  for (std::size_t k = 0; k < 40; ++k) {
    FaultPlan plan;
    plan.lose_at = k;
    plan.lost_peer = rank_at(2);
    SCOPED_TRACE(plan.describe());
    Trio trio(plan);
    trio.run();
    EXPECT_EQ(trio.at(1).complaint(), "");
    EXPECT_EQ(trio.at(1).losses_of(rank_at(0)), 0U);
    EXPECT_EQ(trio.at(1).received_from(rank_at(0)).size(), 4U);
    EXPECT_EQ(trio.at(0).received_from(rank_at(1)).size(), 4U);
    EXPECT_EQ(trio.at(1).unsent(), 0U);
    EXPECT_LE(trio.at(1).losses_of(rank_at(2)), 1U);
    EXPECT_EQ(trio.at(0).complaint(), "");
    EXPECT_EQ(trio.at(2).complaint(), "");
  }
}

TEST(FaultyTransport, AFlippedPayloadIsSeenByWhoComparesIt) {
  for (std::size_t n = 0; n < 8; ++n) {
    FaultPlan plan;
    plan.flip_payload_of = n;
    Trio trio(plan);
    trio.run();
    EXPECT_NE(trio.at(1).complaint().find("is wrong"), std::string::npos) << plan.describe();
    EXPECT_EQ(trio.at(0).complaint(), "");
  }
}

/// Rank 1 has faults, and rank 0 announced two messages without payload to it.
struct Pair {
  explicit Pair(const FaultPlan& plan) : transports(make_inproc_transports(2).value()) {
    transports[1] = make_faulty_transport(std::move(transports[1]), plan);
    for (std::uint64_t step = 0; step < 2; ++step) {
      MessageHeader header;
      header.step = step;
      EXPECT_TRUE(transports[0]->announce(rank_at(1), header, {}, step).is_ok());
    }
    count = transports[1]->poll(events).value();
  }
  std::vector<std::unique_ptr<spi::Transport>> transports;
  std::array<TransportEvent, 8> events;
  std::size_t count = 0;
};

TEST(FaultyTransport, ARepeatedAnnouncementCanBeAcceptedOnce) {
  FaultPlan plan;
  plan.duplicate_announcement = 1;
  Pair pair(plan);
  ASSERT_EQ(pair.count, 3U);
  ASSERT_EQ(pair.events[1].message, pair.events[2].message);
  spi::Transport& receiver = *pair.transports[1];
  EXPECT_TRUE(receiver.accept(rank_at(0), pair.events[1].message, {}).is_ok());
  EXPECT_EQ(receiver.accept(rank_at(0), pair.events[2].message, {}).code(),
            StatusCode::kInvalidArgument);
}

TEST(FaultyTransport, AFlippedHeaderDiffersInOneBitFromThePostedOne) {
  FaultPlan plan;
  plan.flip_header_of = 1;
  const Pair pair(plan);
  ASSERT_EQ(pair.count, 2U);
  MessageHeader posted;
  EXPECT_EQ(pair.events[0].header, posted);
  posted.step = 1;
  const auto* seen = reinterpret_cast<const std::uint8_t*>(&pair.events[1].header);
  const auto* sent = reinterpret_cast<const std::uint8_t*>(&posted);
  int bits = 0;
  for (std::size_t i = 0; i < sizeof posted; ++i) {
    bits += std::popcount(static_cast<std::uint8_t>(seen[i] ^ sent[i]));
  }
  EXPECT_EQ(bits, 1);
}

}  // namespace
}  // namespace stretto::transport

// SPDX-License-Identifier: Apache-2.0
#include "transport/inproc/inproc_transport.hpp"

#include "stretto/spi/conformance/transport_endpoint.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::transport {
namespace {

using spi::MessageHeader;
using spi::TransportEvent;
using spi::conformance::Endpoint;
using spi::conformance::rank_at;

std::vector<std::unique_ptr<Endpoint>> make_endpoints(std::size_t size,
                                                      const InprocOptions& options,
                                                      std::uint64_t seed = 1) {
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  auto transports = make_inproc_transports(size, options).value();
  for (auto& transport : transports) {
    endpoints.push_back(std::make_unique<Endpoint>(std::move(transport), ++seed));
  }
  return endpoints;
}

/// Two stages as an exchange has them: contributions to everyone, then, once all of these have
/// come, results to everyone.  A rank has buffers for `buffers` messages at a time.
class Model {
 public:
  explicit Model(std::uint64_t seed) : random_(seed) {
    const std::size_t size = 2 + random_() % 7;
    buffers_ = 1 + random_() % 3;
    endpoints_ = make_endpoints(size, {64, 64, 4096}, seed);
    posted_.assign(size, 0);
  }

  bool done() const {
    for (const auto& endpoint : endpoints_) {
      if (endpoint->received() < 2 * (endpoints_.size() - 1) || endpoint->unsent() > 0) {
        return false;
      }
    }
    return true;
  }
  /// A random rank does a random thing.
  void step() {
    const std::size_t rank = random_() % endpoints_.size();
    switch (random_() % 4) {
      case 0:
        post(rank);
        break;
      case 1:
        accept(rank);
        break;
      default:
        endpoints_[rank]->turn(1 + random_() % 3);
    }
  }
  /// Everyone does all it can; says whether anything happened.
  bool sweep() {
    bool moved = false;
    for (std::size_t rank = 0; rank < endpoints_.size(); ++rank) {
      moved = post(rank) || moved;
      moved = endpoints_[rank]->turn() > 0 || moved;
      moved = accept(rank) || moved;
      moved = moved || endpoints_[rank]->accepted() > 0;  // it moves: its window is one fragment
    }
    return moved;
  }
  std::string complaint() const {
    for (const auto& endpoint : endpoints_) {
      if (!endpoint->complaint().empty()) {
        return endpoint->complaint();
      }
    }
    return {};
  }

 private:
  bool post(std::size_t rank) {
    const std::size_t size = endpoints_.size();
    const bool ready = posted_[rank] == 0 || endpoints_[rank]->received() >= size - 1;
    if (posted_[rank] == 2 || !ready) {
      return false;
    }
    ++posted_[rank];
    for (std::size_t i = 1; i < size; ++i) {
      endpoints_[rank]->send(
          rank_at((rank + i) % size), random_() % 300, static_cast<std::uint32_t>(random_() % 3));
    }
    return true;
  }
  bool accept(std::size_t rank) {
    if (endpoints_[rank]->announced().empty() || endpoints_[rank]->accepted() >= buffers_) {
      return false;
    }
    endpoints_[rank]->accept_any();
    return true;
  }

  std::mt19937_64 random_;
  std::size_t buffers_ = 1;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::vector<int> posted_;
};

TEST(InprocTransport, EveryScheduleDrainsWithAWindowOfOneFragment) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    Model model(seed);
    for (int i = 0; i < 300 && !model.done(); ++i) {
      model.step();
    }
    int sweeps = 0;
    while (!model.done()) {
      ASSERT_TRUE(model.sweep()) << "stuck, seed " << seed;
      ASSERT_LT(++sweeps, 5000) << "accepted messages do not move, seed " << seed;
    }
    ASSERT_EQ(model.complaint(), "") << "seed " << seed;
  }
}

TEST(InprocTransport, AnnounceWouldBlockAtTheBoundUntilMessagesAreSent) {
  auto transports = make_inproc_transports(2, {64, 64, 3}).value();
  const MessageHeader header;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(transports[0]->announce(rank_at(1), header, {}, 0).is_ok());
  }
  EXPECT_EQ(transports[0]->announce(rank_at(1), header, {}, 0).code(), StatusCode::kWouldBlock);
  std::array<TransportEvent, 8> events;
  ASSERT_EQ(transports[1]->poll(events).value(), 3U);
  EXPECT_TRUE(transports[1]->accept(rank_at(0), events[0].message, {}).is_ok());
  EXPECT_EQ(transports[1]->poll(events).value(), 1U);
  EXPECT_EQ(transports[0]->poll(events).value(), 1U);
  EXPECT_EQ(events[0].kind, TransportEvent::Kind::kSent);
  EXPECT_TRUE(transports[0]->announce(rank_at(1), header, {}, 0).is_ok());
}

TEST(InprocTransport, SmallerPriorityOvertakesWithinAMessage) {
  auto ends = make_endpoints(2, {100, 100, 4096});
  ends[0]->send(rank_at(1), 1000, 5);
  ends[0]->send(rank_at(1), 100, 5);
  ends[0]->send(rank_at(1), 300, 1);
  ends[1]->turn();
  ends[1]->accept(0);
  ends[1]->turn();  // the first fragment of the big one
  ends[1]->accept_all();
  while (ends[1]->turn() > 0 || ends[1]->accepted() > 0) {
  }
  EXPECT_EQ(ends[1]->received_from(rank_at(0)), (std::vector<std::uint64_t>{2, 0, 1}));
}

TEST(InprocTransport, APollCopiesAWindowOfEachPeerAndNoMore) {
  auto transports = make_inproc_transports(3, {100, 300, 4096}).value();
  const std::vector<std::byte> payload(1000, std::byte{1});
  MessageHeader header;
  header.payload_bytes = payload.size();
  std::array<TransportEvent, 8> events;
  std::array<std::vector<std::byte>, 3> buffers;
  for (const std::size_t from : {1U, 2U}) {
    ASSERT_TRUE(transports[from]->announce(rank_at(0), header, payload, 0).is_ok());
    ASSERT_EQ(transports[0]->poll(events).value(), 1U);
  }
  // The second poll found only the second announcement; both messages are accepted now.
  for (const std::size_t from : {1U, 2U}) {
    buffers[from].resize(1000);
    ASSERT_TRUE(
        transports[0]->accept(rank_at(from), spi::MessageId{from - 1}, buffers[from]).is_ok());
  }
  for (std::ptrdiff_t polls = 1; polls <= 3; ++polls) {
    ASSERT_EQ(transports[0]->poll(events).value(), 0U);
    for (const std::size_t from : {1U, 2U}) {
      EXPECT_EQ(std::ranges::count(buffers[from], std::byte{1}), 300 * polls);
    }
  }
  EXPECT_EQ(transports[0]->poll(events).value(), 2U);
}

TEST(InprocTransport, MemoryOfARankThatIsGoneIsNotRead) {
  for (int round = 0; round < 20; ++round) {
    auto ends = make_endpoints(2, {4096, 4096, 4096});
    for (int i = 0; i < 8; ++i) {
      ends[0]->send(rank_at(1), 100'000);
    }
    std::thread receiver([&] {
      const auto deadline = Deadline::after(std::chrono::seconds(30));
      while (ends[1]->losses_of(rank_at(0)) == 0 && !deadline.passed()) {
        ends[1]->turn();
        ends[1]->accept_all();
      }
    });
    while (ends[0]->sent() < static_cast<std::size_t>(round % 8)) {
      ends[0]->turn();
    }
    ends[0].reset();  // transport and payloads; the sanitizers watch who still reads them
    receiver.join();
    EXPECT_EQ(ends[1]->losses_of(rank_at(0)), 1U);
    EXPECT_EQ(ends[1]->complaint(), "");
  }
}

TEST(InprocTransport, CloseGivesUpAtTheDeadlineAndSaysWhy) {
  auto ends = make_endpoints(2, {});
  ends[0]->send(rank_at(1), 100);
  ends[1]->turn();
  ends[1]->accept(0);  // and never polls again
  const Status closed = ends[0]->transport().close(Deadline::after(std::chrono::milliseconds(5)));
  EXPECT_EQ(closed.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(closed.message().find("rank 0"), std::string_view::npos);
  EXPECT_EQ(ends[0]->transport().announce(rank_at(1), {}, {}, 0).code(),
            StatusCode::kInvalidArgument);
}

TEST(InprocTransport, RefusesOptionsThatCannotWork) {
  EXPECT_EQ(make_inproc_transports(0).error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(make_inproc_transports(2, {0, 1, 1}).error().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace stretto::transport

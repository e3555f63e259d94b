// SPDX-License-Identifier: Apache-2.0
#pragma once

// Every transport passes this suite.  A back end's test is three lines:
//
//   INSTANTIATE_TEST_SUITE_P(Mine, TransportConformance, testing::Values(TransportHarness{
//       "mine", [](std::size_t size) { return make_my_connected_transports(size); }}),
//       harness_name);
//
// in namespace stretto::spi::conformance.  Beyond what transport.hpp says, the suite pins down:
// a peer that closes or dies is polled once as kPeerLost, after the events that came before it;
// from then on payloads and buffers of messages with that peer are the caller's again.

#include "stretto/spi/conformance/repetition.hpp"
#include "stretto/spi/conformance/transport_harness.hpp"

#include <thread>

#include <gtest/gtest.h>

namespace stretto::spi::conformance {

TEST_P(TransportConformance, KnowsItsRankItsSizeAndItsName) {
  for (const std::size_t size : {1U, 2U, 5U}) {
    ASSERT_NO_FATAL_FAILURE(start(size));
    for (std::size_t rank = 0; rank < size; ++rank) {
      EXPECT_EQ(transport(rank).rank(), rank_at(rank));
      EXPECT_EQ(transport(rank).size(), size);
      EXPECT_FALSE(transport(rank).traits().name.empty());
    }
  }
}

TEST_P(TransportConformance, AnnouncementsOfOnePeerArriveInPostingOrder) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  for (std::uint32_t i = 0; i < 300; ++i) {
    at(0).send(rank_at(1), i * 37 % 500, 300 - i);
  }
  // The endpoint compares each announced header with what was posted at that place.
  run_until([&] { return at(1).announced().size() == 300; }, false);
  run_until([&] { return at(1).received() == 300 && all_sent(); });
}

TEST_P(TransportConformance, MessagesCompleteInAnyOrderOfAcceptance) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  for (int i = 0; i < 5; ++i) {
    at(0).send(rank_at(1), 100'000);
  }
  run_until([&] { return at(1).announced().size() == 5; }, false);
  for (std::size_t i = 0; i < 5; ++i) {
    at(1).accept(4 - i);
    run_until([&] { return at(1).received() == i + 1; }, false);
  }
  EXPECT_EQ(at(1).received_from(rank_at(0)), (std::vector<std::uint64_t>{4, 3, 2, 1, 0}));
  run_until([&] { return all_sent(); }, false);
}

TEST_P(TransportConformance, PayloadsOfEverySizeArriveWholeAtAnyAlignment) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  for (int round = 0; round < 4; ++round) {
    for (const std::size_t bytes : sizes()) {
      at(0).send(rank_at(1), bytes);
    }
    at(0).send(rank_at(1), 0);  // one off: the alignment goes by the number of the message
  }
  run_until([&] { return at(1).received() == 4 * (sizes().size() + 1) && all_sent(); });
}

TEST_P(TransportConformance, AnnouncedMessagesDoNotMoveBeforeTheyAreAccepted) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  at(0).send(rank_at(1), 1);
  at(0).send(rank_at(1), 1'000'000);
  run_until([&] { return at(1).announced().size() == 2; }, false);
  settle();
  EXPECT_EQ(at(0).sent(), 0U);
  EXPECT_EQ(at(1).received(), 0U);
  run_until([&] { return at(1).received() == 2 && all_sent(); });
}

TEST_P(TransportConformance, AMessageThatWaitsTakesNoCredit) {
  ASSERT_NO_FATAL_FAILURE(start(3));
  for (int i = 0; i < 24; ++i) {
    at(0).send(rank_at(1), std::size_t{1} << 20);  // more than any window, and nobody accepts
  }
  at(0).send(rank_at(1), 5000);
  at(0).send(rank_at(2), 5000);
  at(1).send(rank_at(0), 5000);
  run_until(
      [&] {
        return at(1).announced().size() == 25 && at(2).announced().size() == 1 &&
               at(0).announced().size() == 1;
      },
      false);
  at(1).accept(24);
  at(2).accept(0);
  at(0).accept(0);
  run_until([&] { return all_received() == 3; }, false);
  run_until([&] { return all_received() == 27 && all_sent(); });
}

TEST_P(TransportConformance, ExpectedMessagesPassThoseThatWait) {
  ASSERT_NO_FATAL_FAILURE(start(3));
  constexpr std::size_t kBig = std::size_t{1} << 20;  // more than a window
  for (std::uint32_t i = 0; i < 6; ++i) {
    at(0).send(rank_at(1), kBig);
    at(0).send(rank_at(1), kBig + i, 5 - i, kExpected);
    at(1).send(rank_at(0), 3 * i, i, kExpected);
    at(2).send(rank_at(1), kBig - i, i, kExpected);
  }
  run_until([&] { return all_received() == 18; }, false);
  EXPECT_EQ(at(1).announced().size(), 6U);
  run_until([&] { return all_received() == 24 && all_sent(); });
}

TEST_P(TransportConformance, AnEmptyMessageCompletesOnAcceptanceWithAnEmptyBuffer) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  at(0).send(rank_at(1), 0);
  run_until([&] { return at(1).announced().size() == 1; }, false);
  settle();
  EXPECT_EQ(at(1).received(), 0U);
  run_until([&] { return at(1).received() == 1 && at(0).sent() == 1; });
}

TEST_P(TransportConformance, EveryoneSendsToEveryoneAtOnce) {
  for (const std::size_t size : {2U, 3U, 4U, 5U, 7U, 8U}) {
    ASSERT_NO_FATAL_FAILURE(start(size));
    constexpr std::size_t kMessages = 20;
    for (std::size_t i = 0; i < kMessages; ++i) {
      for (std::size_t from = 0; from < size; ++from) {
        for (std::size_t to = 0; to < size; ++to) {
          if (from != to) {
            at(from).send(rank_at(to),
                          (i * 7919 + from * 31 + to) % 40'000,
                          static_cast<std::uint32_t>(i * 5 % 7));
          }
        }
      }
    }
    ASSERT_NO_FATAL_FAILURE(
        run_until([&] { return all_received() == kMessages * size * (size - 1) && all_sent(); }));
  }
}

TEST_P(TransportConformance, BigMessagesMoveBothWaysAtOnce) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  for (int i = 0; i < 3; ++i) {
    at(0).send(rank_at(1), (std::size_t{3} << 20) + 1);
    at(1).send(rank_at(0), (std::size_t{3} << 20) + 1);
  }
  run_until([&] { return all_received() == 6 && all_sent(); });
}

TEST_P(TransportConformance, PollReportsNoMoreThanThereIsRoomFor) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  for (int i = 0; i < 50; ++i) {
    at(0).send(rank_at(1), 100);
  }
  EXPECT_EQ(at(1).turn(0), 0U);
  run_until([&] {
    EXPECT_LE(at(1).turn(1), 1U);
    return at(1).received() == 50 && all_sent();
  });
}

TEST_P(TransportConformance, ABufferOfAnotherSizeIsRefusedAndTheMessageStays) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  ASSERT_NO_FATAL_FAILURE(announce_one(100));
  std::vector<std::byte> buffer(101);
  const MessageId message = at(1).announced()[0].message;
  for (const std::size_t wrong : {0U, 99U, 101U}) {
    EXPECT_EQ(transport(1).accept(rank_at(0), message, std::span(buffer).first(wrong)).code(),
              StatusCode::kInvalidArgument);
  }
  run_until([&] { return at(1).received() == 1 && all_sent(); });
}

TEST_P(TransportConformance, AMessageThatWasNotAnnouncedIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start(3));
  ASSERT_NO_FATAL_FAILURE(announce_one(100));
  std::vector<std::byte> buffer(100);
  const MessageId message = at(1).announced()[0].message;
  const MessageId unknown{static_cast<std::uint64_t>(message) + 12345};
  const auto code = [&](std::size_t peer, MessageId id) {
    return transport(1).accept(rank_at(peer), id, buffer).code();
  };
  EXPECT_EQ(code(0, unknown), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(2, message), StatusCode::kInvalidArgument) << "another peer's message";
  EXPECT_EQ(code(1, message), StatusCode::kInvalidArgument) << "this rank itself";
  EXPECT_EQ(code(3, message), StatusCode::kInvalidArgument) << "no such peer";
  run_until([&] { return at(1).received() == 1 && all_sent(); });
}

TEST_P(TransportConformance, AMessageIsAcceptedOnlyOnce) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  ASSERT_NO_FATAL_FAILURE(announce_one(100));
  std::vector<std::byte> buffer(100);
  const MessageId message = at(1).announced()[0].message;
  at(1).accept(0);
  EXPECT_EQ(transport(1).accept(rank_at(0), message, buffer).code(), StatusCode::kInvalidArgument);
  run_until([&] { return at(1).received() == 1 && all_sent(); });
  EXPECT_EQ(transport(1).accept(rank_at(0), message, buffer).code(), StatusCode::kInvalidArgument);
}

TEST_P(TransportConformance, AnnouncingRefusesWrongPeersAndSizes) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  const std::vector<std::byte> payload(10);
  MessageHeader header;
  header.payload_bytes = 10;
  const auto code = [&](std::size_t peer, std::size_t bytes) {
    return transport(0).announce(rank_at(peer), header, std::span(payload).first(bytes), 1).code();
  };
  EXPECT_EQ(code(0, 10), StatusCode::kInvalidArgument) << "this rank itself";
  EXPECT_EQ(code(2, 10), StatusCode::kInvalidArgument) << "no such peer";
  EXPECT_EQ(code(1, 9), StatusCode::kInvalidArgument) << "not the header's size";
  settle();
  EXPECT_TRUE(at(1).announced().empty());
}

TEST_P(TransportConformance, CountsItsOwnMessagesAndBytes) {
  ASSERT_NO_FATAL_FAILURE(start(3));
  at(0).send(rank_at(1), 100'000);
  at(0).send(rank_at(2), 0);
  at(1).send(rank_at(0), 777);
  run_until([&] { return all_received() == 3 && all_sent(); });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const TransportCounters counters = transport(rank).counters();
    EXPECT_EQ(counters.payload_bytes_sent, at(rank).bytes_sent());
    EXPECT_EQ(counters.payload_bytes_received, at(rank).bytes_received());
    EXPECT_EQ(counters.messages_sent, at(rank).sent());
    EXPECT_GE(counters.wire_bytes_sent, counters.payload_bytes_sent);
    EXPECT_EQ(counters.refused, 0U);
  }
  EXPECT_EQ(transport(0).counters().payload_bytes_sent, 100'000U);
}

TEST_P(TransportConformance, ALostPeerIsReportedOnceAndTheOthersGoOn) {
  for (const std::size_t lost : {0U, 1U, 2U}) {
    ASSERT_NO_FATAL_FAILURE(start(3));
    for (int i = 0; i < 4; ++i) {
      for (std::size_t from = 0; from < 3; ++from) {
        at(from).send(rank_at((from + 1) % 3), std::size_t{1} << 20);
        at(from).send(rank_at((from + 2) % 3), 1000);
      }
    }
    // In the middle of things: some announced, some accepted, some under way.
    run_until([&] { return all_received() >= 3; });
    at(lost).die();
    const std::size_t a = (lost + 1) % 3;
    const std::size_t b = (lost + 2) % 3;
    const auto whole = [&](std::size_t from, std::size_t to) {
      return at(to).received_from(rank_at(from)).size() == 4;
    };
    run_until([&] {
      return at(a).losses_of(rank_at(lost)) > 0 && at(b).losses_of(rank_at(lost)) > 0 &&
             whole(a, b) && whole(b, a) && at(a).unsent() == 0 && at(b).unsent() == 0;
    });
    at(a).send(rank_at(b), 300'000);
    run_until([&] { return at(b).received_from(rank_at(a)).size() == 5 && at(a).unsent() == 0; });
    settle(true);
    EXPECT_EQ(at(a).losses_of(rank_at(lost)), 1U);
    EXPECT_EQ(at(b).losses_of(rank_at(lost)), 1U);
    EXPECT_EQ(at(a).losses_of(rank_at(b)) + at(b).losses_of(rank_at(a)), 0U);
  }
}

TEST_P(TransportConformance, CallsThatNameALostPeerFailWithPeerLost) {
  ASSERT_NO_FATAL_FAILURE(start(3));
  ASSERT_NO_FATAL_FAILURE(announce_one(100));
  const MessageId message = at(1).announced()[0].message;
  at(0).die();
  run_until([&] { return at(1).losses_of(rank_at(0)) == 1; }, false);
  std::vector<std::byte> buffer(100);
  MessageHeader header;
  header.payload_bytes = 100;
  const Status announced = transport(1).announce(rank_at(0), header, buffer, 1);
  EXPECT_EQ(announced.code(), StatusCode::kPeerLost);
  EXPECT_NE(announced.message().find("rank 0"), std::string_view::npos)
      << "the error names the lost rank: " << announced.message();
  EXPECT_EQ(transport(1).accept(rank_at(0), message, buffer).code(), StatusCode::kPeerLost);
}

TEST_P(TransportConformance, AnythingMayBeDestroyedWithMessagesUnderWay) {
  for (std::size_t stop = 0; stop < 12; ++stop) {
    ASSERT_NO_FATAL_FAILURE(start(3, stop));
    for (std::size_t from = 0; from < 3; ++from) {
      at(from).send(rank_at((from + 1) % 3), 500'000);
      at(from).send(rank_at((from + 2) % 3), 500'000);
    }
    for (std::size_t i = 0; i < stop; ++i) {
      at(i % 3).turn();
      at(i % 3).accept_all();
    }
  }
  EXPECT_TRUE(no_complaints());
}

TEST_P(TransportConformance, ClosingWithNothingUnderWayTellsThePeers) {
  ASSERT_NO_FATAL_FAILURE(start(3));
  at(0).send(rank_at(1), 1000);
  run_until([&] { return at(1).received() == 1 && all_sent(); });
  EXPECT_TRUE(transport(0).close(Deadline::after(std::chrono::seconds(10))).is_ok());
  run_until([&] { return at(1).losses_of(rank_at(0)) == 1 && at(2).losses_of(rank_at(0)) == 1; });
  at(1).send(rank_at(2), 1000);
  run_until([&] { return at(2).received() == 1 && at(1).unsent() == 0; });
}

TEST_P(TransportConformance, CloseFlushesWhatWasAccepted) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  ASSERT_NO_FATAL_FAILURE(announce_one((std::size_t{2} << 20) + 7));
  at(1).accept(0);
  at(1).turn();  // the acceptance is on its way
  const auto arrived = Deadline::after(std::chrono::milliseconds(20));
  while (sleep_for_work(std::span(endpoints_).first(1), arrived)) {
    at(0).turn();
  }
  Status closed;
  std::thread leaving([&] { closed = transport(0).close(Deadline::after(kPatience)); });
  const auto deadline = Deadline::after(kPatience);
  while (at(1).losses_of(rank_at(0)) == 0 && !deadline.passed()) {
    if (at(1).turn() == 0) {
      sleep_for_work(std::span(endpoints_).subspan(1), deadline);
    }
  }
  leaving.join();
  EXPECT_TRUE(closed.is_ok()) << closed.to_string();
  EXPECT_EQ(at(1).received(), 1U);
  EXPECT_TRUE(no_complaints());
}

TEST_P(TransportConformance, EveryRandomScheduleDrains) {
  for (std::uint64_t seed = 1; seed <= 10 * kRepetition; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::size_t size = 2 + random() % 7;
    ASSERT_NO_FATAL_FAILURE(start(size, seed));
    std::size_t to_post = 10 * size;
    const std::size_t total = to_post;
    const auto deadline = Deadline::after(kPatience);
    while (all_received() < total || !all_sent()) {
      const std::size_t rank = random() % size;
      const std::size_t turns = to_post > 0 ? random() % 3 : 1;
      if (to_post > 0 && random() % 2 == 0) {
        at(rank).send(rank_at((rank + 1 + random() % (size - 1)) % size),
                      random() % (GetParam().fragment_bytes * 3 / 2),
                      static_cast<std::uint32_t>(random() % 4),
                      random() % 2 == 0 ? kExpected : std::uint8_t{0});
        --to_post;
      }
      std::size_t events = 0;
      for (std::size_t i = 0; i < turns; ++i) {
        events += at(rank).turn(1 + random() % 4);
      }
      if (random() % 3 == 0) {
        at(rank).accept_any();
        ++events;
      }
      ASSERT_TRUE(no_complaints());
      ASSERT_FALSE(deadline.passed()) << "some message waits for ever";
    }
  }
}

TEST_P(TransportConformance, RanksOnThreadsOfTheirOwnDrain) {
  constexpr std::size_t kSize = 4;
  constexpr std::size_t kMessages = 15 * kRepetition;
  ASSERT_NO_FATAL_FAILURE(start(kSize));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < kSize; ++rank) {
    threads.emplace_back([this, rank] {
      Endpoint& self = at(rank);
      const auto mine = std::span(endpoints_).subspan(rank, 1);
      const auto deadline = Deadline::after(kPatience);
      for (std::size_t i = 0; i < kMessages; ++i) {
        for (std::size_t step = 1; step < kSize; ++step) {
          self.send(rank_at((rank + step) % kSize),
                    (i * 12'345 + rank) % 150'000,
                    0,
                    i % 3 == 0 ? kExpected : std::uint8_t{0});
        }
      }
      while (self.received() < kMessages * (kSize - 1) || self.unsent() > 0) {
        if (self.turn() == 0 && self.announced().empty() && !sleep_for_work(mine, deadline)) {
          return;
        }
        self.accept_all();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(all_received(), kMessages * kSize * (kSize - 1));
  EXPECT_TRUE(all_sent());
  EXPECT_TRUE(no_complaints());
}

}  // namespace stretto::spi::conformance

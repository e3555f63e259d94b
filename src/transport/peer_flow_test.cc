// SPDX-License-Identifier: Apache-2.0
#include "transport/peer_flow.hpp"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <utility>

#include <gtest/gtest.h>

namespace stretto::transport {
namespace {

spi::MessageHeader header_of(std::uint64_t bytes, std::uint32_t priority = 0) {
  spi::MessageHeader header;
  header.payload_bytes = bytes;
  header.priority = priority;
  return header;
}

spi::MessageHeader expected(spi::MessageHeader header) {
  header.flags = spi::kExpected;
  return header;
}

TEST(FlowOptions, AWindowIsTakenFromTheEnvironmentUnlessThatSaysAuto) {
  const auto window_for = [](const char* text) {
    ::setenv("STRETTO_WINDOW", text, 1);
    FlowOptions options{.window_bytes = 1000};
    const Status status = options.read_environment();
    ::unsetenv("STRETTO_WINDOW");
    return status.is_ok() ? options.window_bytes : 0;
  };
  EXPECT_EQ(window_for("300k"), 300U << 10);
  EXPECT_EQ(window_for("auto"), 1000U);
  EXPECT_EQ(window_for(""), 1000U);
  EXPECT_EQ(window_for("wide"), 0U);
}

TEST(ReceiveFlow, GrantsNoMoreThanAWindowAndGoesOnAsBytesCome) {
  ReceiveFlow flow({.window_bytes = 200, .fragment_bytes = 100});
  std::vector<std::byte> buffer(450);
  ASSERT_TRUE(flow.announced(1, header_of(450)).is_ok());
  EXPECT_FALSE(flow.next_grant()) << "nobody has accepted";
  ASSERT_TRUE(flow.accept(1, buffer).has_value());
  EXPECT_EQ(flow.next_grant()->up_to, 100U);
  EXPECT_EQ(flow.next_grant()->up_to, 200U);
  EXPECT_FALSE(flow.next_grant()) << "the window is full";
  ASSERT_TRUE(flow.begin_data({FrameType::kData, 100, 1, 0}).has_value());
  flow.received(1, 99);
  EXPECT_FALSE(flow.next_grant());
  flow.received(1, 1);
  EXPECT_EQ(flow.next_grant()->up_to, 300U);
}

TEST(ReceiveFlow, GrantsTheMostUrgentFirstThenTheOldest) {
  ReceiveFlow flow({.window_bytes = 1000, .fragment_bytes = 100});
  std::vector<std::byte> buffer(200);
  for (std::uint64_t message = 1; message <= 3; ++message) {
    ASSERT_TRUE(flow.announced(message, header_of(200, message == 1 ? 9 : 5)).is_ok());
  }
  ASSERT_TRUE(flow.accept(1, buffer).has_value());
  EXPECT_EQ(flow.next_grant()->message, 1U);
  ASSERT_TRUE(flow.accept(3, buffer).has_value());
  ASSERT_TRUE(flow.accept(2, buffer).has_value());
  // The half-granted message 1 is overtaken, and then goes on.
  for (const std::uint64_t expected : {2U, 2U, 3U, 3U, 1U}) {
    EXPECT_EQ(flow.next_grant()->message, expected);
  }
  EXPECT_FALSE(flow.next_grant());
}

TEST(ReceiveFlow, FragmentsMayOvertakeEachOtherWhereTheNetworkLetsThem) {
  ReceiveFlow flow({.window_bytes = 200, .fragment_bytes = 100});
  std::vector<std::byte> buffer(250);
  ASSERT_TRUE(flow.announced(1, header_of(250)).is_ok());
  ASSERT_TRUE(flow.accept(1, buffer).has_value());
  while (flow.next_grant()) {
  }
  const auto place = [&](std::uint64_t offset, std::uint32_t length) {
    return flow.place_of({FrameType::kData, length, 1, offset});
  };
  EXPECT_EQ(place(100, 100).value(), buffer.data() + 100);
  EXPECT_FALSE(flow.received(1, 100));
  EXPECT_EQ(place(0, 100).value(), buffer.data());
  EXPECT_FALSE(flow.received(1, 100));
  EXPECT_EQ(place(200, 50).error().code(), StatusCode::kCorruptWire) << "not granted";
  EXPECT_EQ(flow.next_grant()->up_to, 250U);
  EXPECT_EQ(place(200, 51).error().code(), StatusCode::kCorruptWire) << "beyond the end";
  EXPECT_EQ(place(0, 100).error().code(), StatusCode::kCorruptWire) << "more than is missing";
  EXPECT_EQ(flow.place_of({FrameType::kData, 1, 2, 0}).error().code(), StatusCode::kCorruptWire)
      << "no such message";
  EXPECT_EQ(place(200, 50).value(), buffer.data() + 200);
  EXPECT_TRUE(flow.received(1, 50));
}

TEST(ReceiveFlow, RefusesDataThatWasNotGranted) {
  ReceiveFlow flow({.window_bytes = 100, .fragment_bytes = 100});
  std::vector<std::byte> buffer(150);
  ASSERT_TRUE(flow.announced(1, header_of(150)).is_ok());
  const auto refused = [&](std::uint64_t message, std::uint64_t offset, std::uint32_t length) {
    const auto place = flow.begin_data({FrameType::kData, length, message, offset});
    return !place && place.error().code() == StatusCode::kCorruptWire;
  };
  EXPECT_TRUE(refused(1, 0, 1)) << "not accepted";
  ASSERT_TRUE(flow.accept(1, buffer).has_value());
  EXPECT_TRUE(refused(1, 0, 1)) << "not granted";
  ASSERT_TRUE(flow.next_grant());
  EXPECT_TRUE(refused(1, 0, 101)) << "beyond the grant";
  EXPECT_TRUE(refused(1, 1, 1)) << "out of order";
  EXPECT_TRUE(refused(2, 0, 1)) << "unknown";
  EXPECT_EQ(flow.begin_data({FrameType::kData, 100, 1, 0}).value(), buffer.data());
}

TEST(ReceiveFlow, AnExpectedMessageComesAgainstCreditOnceItIsAccepted) {
  ReceiveFlow flow({.window_bytes = 100, .fragment_bytes = 100, .credit = true});
  EXPECT_EQ(flow.take_credit(), 100U);
  EXPECT_EQ(flow.take_credit(), 0U) << "the sender has all of it";
  std::vector<std::byte> buffer(150);
  ASSERT_TRUE(flow.announced(1, expected(header_of(150))).is_ok());
  const FrameHead first{FrameType::kData, 80, 1, 0};
  EXPECT_EQ(flow.begin_data(first).error().code(), StatusCode::kWouldBlock);
  ASSERT_TRUE(flow.accept(1, buffer).has_value());
  EXPECT_FALSE(flow.next_grant()) << "it needs none";
  EXPECT_EQ(flow.begin_data(first).value(), buffer.data());
  flow.received(1, 20);
  EXPECT_EQ(flow.take_credit(), 0U) << "not worth a frame";
  flow.received(1, 60);
  EXPECT_EQ(flow.begin_data({FrameType::kData, 21, 1, 80}).error().code(), StatusCode::kCorruptWire)
      << "beyond the credit";
  EXPECT_EQ(flow.take_credit(), 80U);
  EXPECT_TRUE(flow.begin_data({FrameType::kData, 70, 1, 80}).has_value());
  EXPECT_TRUE(flow.received(1, 70));
  EXPECT_EQ(flow.outstanding(), 0U);
}

TEST(ReceiveFlow, ASmallerWindowHoldsCreditBackUntilItFits) {
  ReceiveFlow flow({.window_bytes = 400, .fragment_bytes = 100, .credit = true});
  std::vector<std::byte> buffer(1000);
  ASSERT_EQ(flow.take_credit(), 400U);
  ASSERT_TRUE(flow.announced(1, expected(header_of(1000))).is_ok());
  ASSERT_TRUE(flow.accept(1, buffer).has_value());
  flow.set_window(200);
  flow.received(1, 100);
  EXPECT_EQ(flow.take_credit(), 0U) << "300 are under way still";
  flow.received(1, 150);
  EXPECT_EQ(flow.take_credit(), 50U);
}

TEST(ReceiveFlow, RefusesAnnouncementsOutOfSequence) {
  ReceiveFlow flow({});
  EXPECT_EQ(flow.announced(2, header_of(1)).code(), StatusCode::kCorruptWire);
  ASSERT_TRUE(flow.announced(1, header_of(1)).is_ok());
  EXPECT_EQ(flow.announced(1, header_of(1)).code(), StatusCode::kCorruptWire);
}

TEST(SendFlow, RefusesGrantsThatMakeNoSense) {
  SendFlow flow({});
  const std::vector<std::byte> payload(100);
  ASSERT_EQ(flow.add(0, payload, 1), 1U);
  const auto code = [&](std::uint64_t message, std::uint64_t up_to) {
    return flow.granted({FrameType::kGrant, 0, message, up_to}).code();
  };
  EXPECT_EQ(code(2, 1), StatusCode::kCorruptWire) << "unknown";
  EXPECT_EQ(code(1, 101), StatusCode::kCorruptWire) << "more than there is";
  EXPECT_EQ(code(1, 60), StatusCode::kOk);
  EXPECT_EQ(code(1, 60), StatusCode::kCorruptWire) << "no progress";
  EXPECT_EQ(code(1, 100), StatusCode::kOk);
  EXPECT_TRUE(flow.next_fragment()->is_last);
  EXPECT_EQ(code(1, 100), StatusCode::kCorruptWire) << "wholly sent";
}

TEST(SendFlow, AnUrgentMessageOvertakesAtTheNextFragment) {
  SendFlow flow({.window_bytes = 1000, .fragment_bytes = 100});
  const std::vector<std::byte> payload(300);
  flow.add(9, payload, 1);
  flow.add(1, payload, 2);
  ASSERT_TRUE(flow.granted({FrameType::kGrant, 0, 1, 300}).is_ok());
  EXPECT_EQ(flow.next_fragment()->head.message, 1U);
  ASSERT_TRUE(flow.granted({FrameType::kGrant, 0, 2, 100}).is_ok());
  EXPECT_EQ(flow.next_fragment()->head.message, 2U);
  EXPECT_EQ(flow.next_fragment()->head.offset, 100U);
}

TEST(SendFlow, AnExpectedMessageMovesAsFarAsCreditGoes) {
  SendFlow flow({.window_bytes = 1000, .fragment_bytes = 100});
  const std::vector<std::byte> payload(150);
  flow.add(5, payload, 1, true);
  EXPECT_FALSE(flow.next_fragment()) << "no credit yet";
  EXPECT_EQ(flow.moving(), 1U) << "it will come without anybody's decision";
  ASSERT_TRUE(flow.credited(120).is_ok());
  EXPECT_EQ(flow.next_fragment()->head.length, 100U);
  EXPECT_FALSE(flow.next_fragment()) << "20 bytes are not worth a frame";
  ASSERT_TRUE(flow.credited(90).is_ok());
  EXPECT_TRUE(flow.next_fragment()->is_last);
  EXPECT_EQ(flow.granted({FrameType::kGrant, 0, 1, 150}).code(), StatusCode::kCorruptWire);
  EXPECT_EQ(flow.credited(std::uint64_t{1} << 40).code(), StatusCode::kCorruptWire);
}

TEST(SendFlow, OfGrantedAndExpectedMessagesTheMoreUrgentGoesFirst) {
  SendFlow flow({.window_bytes = 1000, .fragment_bytes = 100});
  const std::vector<std::byte> payload(200);
  flow.add(3, payload, 1);
  flow.add(2, payload, 2, true);
  flow.add(4, payload, 3, true);
  ASSERT_TRUE(flow.granted({FrameType::kGrant, 0, 1, 200}).is_ok());
  ASSERT_TRUE(flow.credited(1000).is_ok());
  for (const std::uint64_t message : {2U, 2U, 1U, 1U, 3U, 3U}) {
    EXPECT_EQ(flow.next_fragment()->head.message, message);
  }
}

// The model: P ranks, a wire per direction of each pair that carries frames in order, random sizes,
// priorities, and order of everything that can happen; windows of one fragment.
class Model {
 public:
  Model(std::size_t ranks, std::uint64_t seed) : ranks_(ranks), random_(seed) {
    const FlowOptions options{.window_bytes = 64, .fragment_bytes = 64, .credit = true};
    for (std::size_t i = 0; i < ranks * ranks; ++i) {
      lanes_.push_back(std::make_unique<Lane>(options));
    }
  }

  /// and announces the next only once it has heard the one before from there.
  void run(std::size_t messages) {
    const std::size_t pairs = ranks_ * (ranks_ - 1);
    std::size_t idle = 0;
    while (complete_ < pairs * messages) {
      const std::size_t from = random_() % ranks_;
      const std::size_t to = random_() % ranks_;
      if (from != to && act(*lanes_[from * ranks_ + to], from, to, messages)) {
        idle = 0;
      } else {
        ASSERT_LT(++idle, 20'000U) << "nothing can happen any more, " << complete_ << " complete";
      }
    }
    for (const auto& lane : lanes_) {
      EXPECT_EQ(lane->receive.outstanding(), 0U);
      EXPECT_EQ(lane->receive.open(), 0U);
      EXPECT_EQ(lane->send.open(), 0U);
    }
  }

 private:
  struct Lane {  // one direction of one pair
    explicit Lane(const FlowOptions& options) : send(options), receive(options) {}
    SendFlow send;
    ReceiveFlow receive;
    std::deque<std::pair<FrameHead, std::vector<std::byte>>> data;
    std::deque<std::pair<std::uint64_t, spi::MessageHeader>> announcements;
    std::deque<ReceiveFlow::Grant> grants;
    std::deque<std::size_t> credits;
    std::vector<std::uint64_t> unaccepted;
    std::deque<std::vector<std::byte>> payloads;
    std::deque<std::vector<std::byte>> buffers;
    std::size_t announced = 0;
    std::size_t received = 0;
  };

  bool act(Lane& lane, std::size_t from, std::size_t to, std::size_t messages) {
    switch (random_() % 6) {
      case 0:
        return announce(lane, from, to, messages);
      case 1:
        return deliver_announcement(lane);
      case 2:
        return accept(lane);
      case 3:
        return give(lane);
      case 4:
        return move_data(lane);
      default:
        return receive_data(lane);
    }
  }

  static bool give(Lane& lane) {
    if (const auto grant = lane.receive.next_grant()) {
      lane.grants.push_back(*grant);
      return true;
    }
    if (const std::size_t credit = lane.receive.take_credit(); credit > 0) {
      lane.credits.push_back(credit);
      return true;
    }
    return false;
  }

  bool announce(Lane& lane, std::size_t from, std::size_t to, std::size_t messages) {
    // What a rank says next depends on what it has heard, as in an exchange of two stages.
    const Lane& back = *lanes_[to * ranks_ + from];
    if (lane.announced == messages || lane.announced > back.received + 1) {
      return false;
    }
    ++lane.announced;
    lane.payloads.emplace_back(1 + random_() % 200, static_cast<std::byte>(random_()));
    const auto& payload = lane.payloads.back();
    auto header = header_of(payload.size(), static_cast<std::uint32_t>(random_() % 3));
    header.flags = random_() % 2 == 0 ? spi::kExpected : std::uint8_t{0};
    const std::uint64_t number = lane.send.add(header.priority, payload, 0, header.flags != 0);
    lane.announcements.emplace_back(number, header);
    return true;
  }

  bool deliver_announcement(Lane& lane) {
    if (lane.announcements.empty()) {
      return false;
    }
    const auto [number, header] = lane.announcements.front();
    lane.announcements.pop_front();
    EXPECT_TRUE(lane.receive.announced(number, header).is_ok());
    lane.buffers.emplace_back(header.payload_bytes);
    if (header.flags != 0) {  // expected: accepted at once
      EXPECT_TRUE(lane.receive.accept(number, lane.buffers.back()).has_value());
    } else {
      lane.unaccepted.push_back(number);
    }
    return true;
  }

  bool accept(Lane& lane) {
    if (lane.unaccepted.empty()) {
      return false;
    }
    std::swap(lane.unaccepted[random_() % lane.unaccepted.size()], lane.unaccepted.back());
    const std::uint64_t number = lane.unaccepted.back();
    lane.unaccepted.pop_back();
    EXPECT_TRUE(lane.receive.accept(number, lane.buffers[number - 1]).has_value());
    return true;
  }

  bool move_data(Lane& lane) {
    if (!lane.grants.empty()) {
      const auto grant = lane.grants.front();
      lane.grants.pop_front();
      EXPECT_TRUE(lane.send.granted({FrameType::kGrant, 0, grant.message, grant.up_to}).is_ok());
      return true;
    }
    if (!lane.credits.empty()) {
      EXPECT_TRUE(lane.send.credited(lane.credits.front()).is_ok());
      lane.credits.pop_front();
      return true;
    }
    if (const auto fragment = lane.send.next_fragment()) {
      lane.data.emplace_back(
          fragment->head,
          std::vector<std::byte>(fragment->data, fragment->data + fragment->head.length));
      return true;
    }
    return false;
  }

  bool receive_data(Lane& lane) {
    // Announcements and data come in one stream: none of the latter overtakes its announcement.
    if (lane.data.empty() || (!lane.announcements.empty() && lane.announcements.front().first <=
                                                                 lane.data.front().first.message)) {
      return false;
    }
    const auto [head, bytes] = std::move(lane.data.front());
    lane.data.pop_front();
    const auto place = lane.receive.begin_data(head);
    EXPECT_TRUE(place.has_value());
    std::memcpy(*place, bytes.data(), bytes.size());
    EXPECT_LE(lane.receive.outstanding(), 64U);
    if (lane.receive.received(head.message, bytes.size())) {
      EXPECT_EQ(lane.buffers[head.message - 1], lane.payloads[head.message - 1]);
      ++lane.received;
      ++complete_;
    }
    return true;
  }

  const std::size_t ranks_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::size_t complete_ = 0;
};

TEST(FlowModel, EveryScheduleDrainsWithAWindowOfOneFragment) {
  for (std::size_t ranks = 2; ranks <= 8; ++ranks) {
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, seed " << seed);
      Model model(ranks, seed);
      ASSERT_NO_FATAL_FAILURE(model.run(6));
    }
  }
}

}  // namespace
}  // namespace stretto::transport

// SPDX-License-Identifier: Apache-2.0
//
// How ranks come together over real sockets on the loopback interface, and who is turned away.
#include "rendezvous/group_test_support.hpp"
#include "rendezvous/hub.hpp"
#include "rendezvous/socket.hpp"
#include "rendezvous/spoke.hpp"
#include "tests/patience.hpp"

#include <array>
#include <atomic>
#include <string>

#include <gtest/gtest.h>
#include <sys/socket.h>

namespace stretto::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Joined = Result<std::shared_ptr<StarGroup>>;

TEST(Joining, MissingRanksAreNamedOnEveryRankThatCame) {
  const auto failures_after = [](milliseconds timeout) {
    const std::uint16_t port = find_free_port().value();
    std::array<Status, 2> failures;
    on_every_rank(2, [&](std::size_t rank) {
      auto options = make_options(rank, 4, port);
      options.timeout = rank == 0 ? timeout : seconds(30);
      const auto joined = StarGroup::join(options);
      ASSERT_FALSE(joined.has_value());
      failures[rank] = joined.error();
    });
    return failures;
  };
  EXPECT_EQ(testing::with_patience([&](milliseconds timeout) -> std::string {
              const std::string wanted =
                  "rank 0 waited " + std::to_string(timeout.count()) + " ms for ranks 2 and 3";
              for (const Status& failure : failures_after(timeout)) {
                if (failure.code() != StatusCode::kDeadlineExceeded ||
                    !contains(failure.message(), wanted)) {
                  return "said: " + failure.to_string();
                }
              }
              return {};
            }),
            "");
}

TEST(Joining, AbsentRankZeroIsNamedWithItsAddress) {
  auto options = make_options(1, 2, find_free_port().value());
  options.timeout = milliseconds(100);
  const auto joined = StarGroup::join(options);
  ASSERT_FALSE(joined.has_value());
  EXPECT_EQ(joined.error().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(contains(joined.error().message(), "for rank 0 at 127.0.0.1:"))
      << joined.error().message();
}

TEST(Joining, NameThatDoesNotResolveNamesTheVariable) {
  auto options = make_options(1, 2, 29500);
  options.master_address = "no..such..host";
  const auto joined = StarGroup::join(options);
  ASSERT_FALSE(joined.has_value());
  EXPECT_EQ(joined.error().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(contains(joined.error().message(), "MASTER_ADDR='no..such..host' does not resolve"))
      << joined.error().message();
}

TEST(Joining, TakenPortSaysSo) {
  const auto groups = join_all(2);
  const auto& taken = groups[0]->options();
  const auto joined = StarGroup::join(make_options(0, 2, taken.master_port));
  ASSERT_FALSE(joined.has_value());
  EXPECT_EQ(joined.error().code(), StatusCode::kUnavailable);
  EXPECT_EQ(joined.error().message(),
            "port " + std::to_string(taken.master_port) +
                " on this host is taken (another job?); set MASTER_PORT to a free one");
}

/// Joins 2 ranks while one more process tries to get in with `wrong` options.
Joined join_beside(std::size_t wrong_rank,
                   std::size_t wrong_size,
                   const std::string& wrong_token,
                   std::uint64_t& refused) {
  const std::uint16_t port = find_free_port().value();
  Joined intruder = fail(StatusCode::kInternal, "not tried");
  std::shared_ptr<StarGroup> zero;
  std::atomic<bool> tried{false};
  on_every_rank(3, [&](std::size_t thread) {
    if (thread == 2) {
      auto options = make_options(wrong_rank, wrong_size, port);
      options.token = wrong_token;
      intruder = StarGroup::join(options);
      tried = true;
      return;
    }
    while (thread == 1 && !tried) {
      std::this_thread::yield();  // so that the intruder comes while rank 0 still waits
    }
    auto group = StarGroup::join(make_options(thread, 2, port));
    ASSERT_TRUE(group.has_value()) << group.error().to_string();
    if (thread == 0) {
      zero = *group;
    }
  });
  refused = zero == nullptr ? 0 : zero->refused();
  return intruder;
}

TEST(Joining, WrongTokenIsRefusedAndCounted) {
  std::uint64_t refused = 0;
  const auto intruder = join_beside(1, 2, "other", refused);
  ASSERT_FALSE(intruder.has_value());
  EXPECT_EQ(intruder.error().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(contains(intruder.error().message(), "another token")) << intruder.error().message();
  EXPECT_EQ(refused, 1U);
}

TEST(Joining, WrongSizeIsRefusedAndCounted) {
  std::uint64_t refused = 0;
  const auto intruder = join_beside(1, 3, "secret", refused);
  ASSERT_FALSE(intruder.has_value());
  EXPECT_TRUE(contains(intruder.error().message(), "WORLD_SIZE=3")) << intruder.error().message();
  EXPECT_TRUE(contains(intruder.error().message(), "WORLD_SIZE=2")) << intruder.error().message();
  EXPECT_EQ(refused, 1U);
}

TEST(Joining, SecondProcessOfTheSameRankIsRefusedAndDisturbsNobody) {
  const auto groups = join_all(3);
  const auto again = StarGroup::join(make_options(2, 3, groups[0]->options().master_port));
  ASSERT_FALSE(again.has_value());
  EXPECT_TRUE(contains(again.error().message(), "rank 2 is in this group already"))
      << again.error().message();
  EXPECT_EQ(groups[0]->refused(), 1U);
  EXPECT_TRUE(groups[0]->control().health().is_ok());
  EXPECT_TRUE(groups[2]->control().health().is_ok());
}

TEST(Joining, OtherVersionIsRefusedByName) {
  const auto groups = join_all(2);
  const auto other = greet_by_hand(groups[0]->options(), kWireVersion + 1);
  EXPECT_EQ(other.answer.kind, FrameKind::kRefused);
  EXPECT_TRUE(contains(decode_notice(other.answer.body)->text, "speaks version 2"));
  EXPECT_EQ(groups[0]->refused(), 1U);
}

TEST(Joining, GarbageOnThePortIsCountedAndDisturbsNobody) {
  const auto groups = join_all(2);
  std::string garbage = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  constexpr int kStrangers = 100;
  for (int i = 0; i < kStrangers; ++i) {
    auto socket = connect_when_open(groups[0]->options().master_port);
    garbage[static_cast<std::size_t>(i) % garbage.size()] = static_cast<char>(i * 37);
    EXPECT_GT(::send(socket.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
    std::byte byte{};
    while (wait_ready(socket.get(), Direction::kIn, Deadline::after(seconds(20))) &&
           ::recv(socket.get(), &byte, 1, 0) > 0) {
    }  // until rank 0 has closed it
  }
  EXPECT_EQ(groups[0]->refused(), static_cast<std::uint64_t>(kStrangers));
  on_every_rank(2, [&](std::size_t rank) {
    EXPECT_TRUE(
        groups[rank]->control().all_gather("x", {}, Deadline::after(seconds(20))).has_value());
  });
}

TEST(Joining, SilentStrangersAreBoundedAndRanksStillGetIn) {
  auto options = make_options(0, 2, find_free_port().value());
  std::shared_ptr<StarGroup> zero;
  std::thread thread([&zero, options] { zero = StarGroup::join(options).value(); });
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(connect_when_open(options.master_port));
  }
  options.rank = 1;
  const auto one = StarGroup::join(options);
  thread.join();
  ASSERT_TRUE(one.has_value()) << one.error().to_string();
  EXPECT_GE(zero->refused(), 36U);
}

/// Rank 0 of three; rank 1 was let in, and has gone again as it says; what rank 2 then hears.
Status join_after(const std::function<void(HandMadeRank&)>& go) {
  auto options = make_options(0, 3, find_free_port().value());
  const Deadline deadline = Deadline::after(seconds(20));
  auto listener = listen_for_ranks(options.master_address, options.master_port, deadline).value();
  const auto zero = Hub::make(options, std::move(listener), deadline).value();
  options.rank = 1;
  auto one = greet_by_hand(options);
  EXPECT_EQ(one.answer.kind, FrameKind::kAccepted);
  go(one);
  EXPECT_FALSE(zero->wait_joined(deadline).is_ok());
  options.rank = 2;
  const auto two = Spoke::make(options, deadline).value();
  return two->wait_joined(deadline);
}

TEST(Joining, WhoComesAfterALossHearsOfIt) {
  const Status status = join_after([](HandMadeRank& one) { one.connection.reset(); });
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_TRUE(contains(status.message(), "rank 1 was lost")) << status.message();
}

TEST(Joining, WhoComesAfterAnotherLeftHearsOfIt) {
  const Status status = join_after([](HandMadeRank& one) {
    EXPECT_TRUE(one.connection->send_blocking(encode(FrameKind::kBye), Deadline::after(seconds(20)))
                    .is_ok());
  });
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_TRUE(contains(status.message(), "rank 1 left before all")) << status.message();
}

}  // namespace
}  // namespace stretto::rendezvous

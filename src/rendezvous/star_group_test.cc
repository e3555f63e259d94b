// SPDX-License-Identifier: Apache-2.0
//
// Groups over real sockets on the loopback interface; ranks are threads.
#include "rendezvous/connection.hpp"
#include "rendezvous/frame.hpp"
#include "rendezvous/group_test_support.hpp"
#include "rendezvous/join.hpp"
#include "rendezvous/socket.hpp"

#include <atomic>
#include <cstring>
#include <optional>

#include <dirent.h>
#include <gtest/gtest.h>

namespace stretto::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Joined = Result<std::shared_ptr<StarGroup>>;

GroupOptions make_options(std::size_t rank, std::size_t size, std::uint16_t port) {
  GroupOptions options;
  options.rank = rank;
  options.size = size;
  options.master_port = port;
  options.token = "secret";
  options.timeout = seconds(30);
  return options;
}

std::vector<std::shared_ptr<StarGroup>> join_all(std::size_t size,
                                                 milliseconds dead_after = seconds(30)) {
  const std::uint16_t port = find_free_port().value();
  std::vector<std::shared_ptr<StarGroup>> groups(size);
  on_every_rank(size, [&](std::size_t rank) {
    auto options = make_options(rank, size, port);
    options.dead_after = dead_after;
    auto group = StarGroup::join(options);
    ASSERT_TRUE(group.has_value()) << group.error().to_string();
    groups[rank] = std::move(*group);
  });
  return groups;
}

SocketAddress loopback(std::uint16_t port) {
  return resolve("127.0.0.1", port, Deadline::after(seconds(5))).value().front();
}

FileDescriptor connect_when_open(std::uint16_t port) {
  const Deadline deadline = Deadline::after(seconds(20));
  while (!deadline.passed()) {
    if (auto socket = connect_to(loopback(port), deadline)) {
      return std::move(*socket);
    }
    std::this_thread::yield();
  }
  return {};
}

/// A rank made by hand that greets rank 0 as it is told to, and then does nothing by itself.
struct HandMadeRank {
  std::unique_ptr<Connection> connection;
  Frame answer;
};

HandMadeRank greet_by_hand(const GroupOptions& options, std::uint32_t version = kWireVersion) {
  const Deadline deadline = Deadline::after(seconds(20));
  HandMadeRank made;
  made.connection = std::make_unique<Connection>(connect_when_open(options.master_port));
  const auto challenge =
      decode_challenge(made.connection->receive_blocking(deadline).value().body).value();
  Hello hello;
  hello.version = version;
  hello.rank = static_cast<std::uint32_t>(options.rank);
  hello.size = static_cast<std::uint32_t>(options.size);
  hello.proof = prove_token(
      options.token, Prover::kJoiner, challenge.nonce, hello.nonce, hello.rank, hello.size);
  EXPECT_TRUE(made.connection->send_blocking(encode(hello), deadline).is_ok());
  made.answer = made.connection->receive_blocking(deadline).value();
  return made;
}

/// Rank 0 of two; the other rank is made by hand.
struct PairByHand {
  std::shared_ptr<StarGroup> zero;
  HandMadeRank one;
};

PairByHand pair_by_hand(milliseconds dead_after) {
  auto options = make_options(0, 2, find_free_port().value());
  options.dead_after = dead_after;
  PairByHand pair;
  std::thread zero([&] {
    auto joined = StarGroup::join(options);
    ASSERT_TRUE(joined.has_value()) << joined.error().to_string();
    pair.zero = std::move(*joined);
  });
  auto mine = options;
  mine.rank = 1;
  pair.one = greet_by_hand(mine);
  zero.join();
  return pair;
}

Status wait_bad(spi::ControlPlane& plane) {
  EXPECT_TRUE(readable(plane.descriptor(), Deadline::after(seconds(20))));
  return plane.health();
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::size_t entries(const char* folder) {
  std::size_t count = 0;
  DIR* handle = ::opendir(folder);
  while (::readdir(handle) != nullptr) {
    ++count;
  }
  ::closedir(handle);
  return count;
}

TEST(StarGroup, GathersBlobsByRank) {
  for (const std::size_t size : {2U, 3U, 4U, 7U}) {
    const auto groups = join_all(size);
    on_every_rank(size, [&](std::size_t rank) {
      for (int round = 0; round < 10; ++round) {
        const std::string mine(rank * 1000, static_cast<char>('a' + round));
        const auto all = groups[rank]->control().all_gather(
            "round " + std::to_string(round), as_blob(mine), Deadline::after(seconds(20)));
        ASSERT_TRUE(all.has_value()) << all.error().to_string();
        ASSERT_EQ(all->size(), size);
        for (std::size_t other = 0; other < size; ++other) {
          EXPECT_EQ(as_text((*all)[other]),
                    std::string(other * 1000, static_cast<char>('a' + round)));
        }
      }
    });
  }
}

TEST(StarGroup, WithoutATokenAPortThatOthersReachIsWarnedOf) {
  const auto said_when_joining = [](const std::string& address, const std::string& token) {
    const std::uint16_t port = find_free_port().value();
    std::vector<std::shared_ptr<StarGroup>> groups(2);  // until both are there
    ::testing::internal::CaptureStderr();
    on_every_rank(groups.size(), [&](std::size_t rank) {
      auto options = make_options(rank, groups.size(), port);
      options.master_address = address;
      options.token = token;
      auto group = StarGroup::join(options);
      ASSERT_TRUE(group.has_value()) << group.error().to_string();
      groups[rank] = std::move(*group);
    });
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string warning = "no token is set, and other hosts reach port ";
  const std::string said = said_when_joining("0.0.0.0", "");
  EXPECT_TRUE(contains(said, warning)) << said;
  EXPECT_EQ(said.find(warning), said.rfind(warning)) << "by one rank: " << said;
  EXPECT_FALSE(contains(said_when_joining("0.0.0.0", "secret"), warning));
  EXPECT_FALSE(contains(said_when_joining("127.0.0.1", ""), warning));
}

TEST(StarGroup, OneRankNeedsNoSockets) {
  GroupOptions options;
  options.master_address = "does.not.resolve.invalid";
  const auto group = Group::join(options);
  ASSERT_TRUE(group.has_value());
  const auto all = (*group)->control().all_gather("x", as_blob("me"), Deadline::after(seconds(5)));
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(as_text(all->front()), "me");
}

TEST(StarGroup, LargeBlobsArriveAndLargerOnesAreRefused) {
  const auto groups = join_all(2);
  on_every_rank(2, [&](std::size_t rank) {
    const std::string mine(std::size_t{4} << 20, static_cast<char>('a' + rank));
    const auto all =
        groups[rank]->control().all_gather("large", as_blob(mine), Deadline::after(seconds(30)));
    ASSERT_TRUE(all.has_value()) << all.error().to_string();
    EXPECT_EQ((*all)[1 - rank].size(), mine.size());
    EXPECT_EQ((*all)[1 - rank].back(), static_cast<std::byte>('a' + 1 - rank));
  });
  const std::string huge((std::size_t{64} << 20) + 1, 'x');
  const auto all =
      groups[0]->control().all_gather("huge", as_blob(huge), Deadline::after(seconds(5)));
  ASSERT_FALSE(all.has_value());
  EXPECT_EQ(all.error().code(), StatusCode::kInvalidArgument);
}

TEST(StarGroup, MissingRanksAreNamedOnEveryRankThatCame) {
  const std::uint16_t port = find_free_port().value();
  on_every_rank(2, [&](std::size_t rank) {
    auto options = make_options(rank, 4, port);
    options.timeout = rank == 0 ? milliseconds(300) : seconds(30);
    const auto joined = StarGroup::join(options);
    ASSERT_FALSE(joined.has_value());
    EXPECT_EQ(joined.error().code(), StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(contains(joined.error().message(), "rank 0 waited 300 ms for ranks 2 and 3"))
        << joined.error().message();
  });
}

TEST(StarGroup, AbsentRankZeroIsNamedWithItsAddress) {
  auto options = make_options(1, 2, find_free_port().value());
  options.timeout = milliseconds(100);
  const auto joined = StarGroup::join(options);
  ASSERT_FALSE(joined.has_value());
  EXPECT_EQ(joined.error().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(contains(joined.error().message(), "for rank 0 at 127.0.0.1:"))
      << joined.error().message();
}

TEST(StarGroup, NameThatDoesNotResolveNamesTheVariable) {
  auto options = make_options(1, 2, 29500);
  options.master_address = "no..such..host";
  const auto joined = StarGroup::join(options);
  ASSERT_FALSE(joined.has_value());
  EXPECT_EQ(joined.error().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(contains(joined.error().message(), "MASTER_ADDR='no..such..host' does not resolve"))
      << joined.error().message();
}

TEST(StarGroup, TakenPortSaysSo) {
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

TEST(StarGroup, WrongTokenIsRefusedAndCounted) {
  std::uint64_t refused = 0;
  const auto intruder = join_beside(1, 2, "other", refused);
  ASSERT_FALSE(intruder.has_value());
  EXPECT_EQ(intruder.error().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(contains(intruder.error().message(), "another token")) << intruder.error().message();
  EXPECT_EQ(refused, 1U);
}

TEST(StarGroup, WrongSizeIsRefusedAndCounted) {
  std::uint64_t refused = 0;
  const auto intruder = join_beside(1, 3, "secret", refused);
  ASSERT_FALSE(intruder.has_value());
  EXPECT_TRUE(contains(intruder.error().message(), "WORLD_SIZE=3")) << intruder.error().message();
  EXPECT_TRUE(contains(intruder.error().message(), "WORLD_SIZE=2")) << intruder.error().message();
  EXPECT_EQ(refused, 1U);
}

TEST(StarGroup, SecondProcessOfTheSameRankIsRefusedAndDisturbsNobody) {
  const auto groups = join_all(3);
  const auto again = StarGroup::join(make_options(2, 3, groups[0]->options().master_port));
  ASSERT_FALSE(again.has_value());
  EXPECT_TRUE(contains(again.error().message(), "rank 2 is in this group already"))
      << again.error().message();
  EXPECT_EQ(groups[0]->refused(), 1U);
  EXPECT_TRUE(groups[0]->control().health().is_ok());
  EXPECT_TRUE(groups[2]->control().health().is_ok());
}

TEST(StarGroup, OtherVersionIsRefusedByName) {
  const auto groups = join_all(2);
  const auto other = greet_by_hand(groups[0]->options(), kWireVersion + 1);
  EXPECT_EQ(other.answer.kind, FrameKind::kRefused);
  EXPECT_TRUE(contains(decode_notice(other.answer.body)->text, "speaks version 2"));
  EXPECT_EQ(groups[0]->refused(), 1U);
}

TEST(StarGroup, GarbageOnThePortIsCountedAndDisturbsNobody) {
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

TEST(StarGroup, SilentStrangersAreBoundedAndRanksStillGetIn) {
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

TEST(StarGroup, ClosedConnectionIsALossThatEveryoneHearsOf) {
  auto groups = join_all(4);
  groups[2].reset();
  for (const std::size_t rank : {0U, 1U, 3U}) {
    const Status status = wait_bad(groups[rank]->control());
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    EXPECT_TRUE(contains(status.message(), "rank 2 was lost: its connection")) << status.message();
  }
}

TEST(StarGroup, EveryoneNoticesTheLossOfRankZero) {
  auto groups = join_all(3);
  groups[0].reset();
  for (const std::size_t rank : {1U, 2U}) {
    const Status status = wait_bad(groups[rank]->control());
    EXPECT_TRUE(contains(status.message(), "rank 0 was lost")) << status.message();
  }
}

TEST(StarGroup, SilenceIsALoss) {
  auto pair = pair_by_hand(milliseconds(100));
  ASSERT_EQ(pair.one.answer.kind, FrameKind::kAccepted);
  const Status status = wait_bad(pair.zero->control());
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_TRUE(
      contains(status.message(), "rank 1 was lost: it has been silent for more than 100 ms"))
      << status.message();
}

TEST(StarGroup, HeartbeatsKeepIdleRanksAlive) {
  const auto groups = join_all(3, milliseconds(600));
  // Nothing but heartbeats for longer than the silence that would be a loss.
  EXPECT_FALSE(readable(groups[0]->control().descriptor(), Deadline::after(milliseconds(950))));
  for (const auto& group : groups) {
    EXPECT_TRUE(group->control().health().is_ok()) << group->control().health().to_string();
  }
}

TEST(StarGroup, LossDuringAGatherEndsItAtOnce) {
  auto groups = join_all(3);
  on_every_rank(3, [&](std::size_t rank) {
    if (rank == 1) {
      groups[1].reset();
      return;
    }
    const auto all = groups[rank]->control().all_gather("x", {}, Deadline::after(seconds(60)));
    ASSERT_FALSE(all.has_value());
    EXPECT_EQ(all.error().code(), StatusCode::kPeerLost);
    EXPECT_TRUE(contains(all.error().message(), "rank 1")) << all.error().message();
  });
}

TEST(StarGroup, LossWhileRanksGatherIsNamed) {
  const std::uint16_t port = find_free_port().value();
  HandMadeRank one;
  on_every_rank(3, [&](std::size_t thread) {
    if (thread == 1) {
      one = greet_by_hand(make_options(1, 4, port));
      greet_by_hand(make_options(2, 4, port));  // let in, and gone again
    } else if (thread == 0) {
      const auto joined = StarGroup::join(make_options(0, 4, port));
      ASSERT_FALSE(joined.has_value());
      EXPECT_EQ(joined.error().code(), StatusCode::kPeerLost);
      EXPECT_TRUE(contains(joined.error().message(), "rank 2 was lost"));
    }
  });
  // Rank 1 was told before rank 0 gave up.
  while (one.answer.kind != FrameKind::kLost) {
    one.answer = one.connection->receive_blocking(Deadline::after(seconds(20))).value();
  }
  EXPECT_EQ(decode_notice(one.answer.body)->number, 2U);
}

TEST(StarGroup, AbortCarriesItsReasonToEveryone) {
  for (const std::size_t who : {0U, 2U}) {
    const auto groups = join_all(3);
    groups[who]->control().abort({StatusCode::kAborted, "loss is NaN in step 7"});
    for (std::size_t rank = 0; rank < 3; ++rank) {
      if (rank != who) {
        const Status status = wait_bad(groups[rank]->control());
        EXPECT_EQ(status.code(), StatusCode::kPeerLost);
        EXPECT_EQ(status.message(),
                  "rank " + std::to_string(who) + " gave up: loss is NaN in step 7");
      }
    }
    EXPECT_TRUE(groups[who]->control().health().is_ok());
  }
}

TEST(StarGroup, LeavingIsNotALoss) {
  const auto groups = join_all(3);
  groups[2]->leave();
  // The goodbye was sent before this call: its effect on a gather shows that it has arrived.
  const auto all = groups[0]->control().all_gather("x", {}, Deadline::after(seconds(20)));
  ASSERT_FALSE(all.has_value());
  EXPECT_EQ(all.error().code(), StatusCode::kPeerLost);
  EXPECT_TRUE(contains(all.error().message(), "rank 2 has left the group"));
  EXPECT_TRUE(groups[0]->control().health().is_ok());
  EXPECT_TRUE(groups[1]->control().health().is_ok());
  groups[0]->leave();
  const auto later = groups[1]->control().all_gather("x", {}, Deadline::after(seconds(20)));
  ASSERT_FALSE(later.has_value());
  EXPECT_TRUE(groups[1]->control().health().is_ok());
}

TEST(StarGroup, ResultsArriveThoughRankZeroLeavesRightAfter) {
  for (int repeat = 0; repeat < 10; ++repeat) {
    const auto groups = join_all(3);
    on_every_rank(3, [&](std::size_t rank) {
      const std::string mine(300'000, 'x');
      const auto all =
          groups[rank]->control().all_gather("last", as_blob(mine), Deadline::after(seconds(20)));
      EXPECT_TRUE(all.has_value()) << all.error().to_string();
      groups[rank]->leave();
    });
    for (const auto& group : groups) {
      EXPECT_TRUE(group->control().health().is_ok()) << group->control().health().to_string();
    }
  }
}

TEST(StarGroup, DeadlineNamesWhoDidNotCallOnEveryRankThatDid) {
  const auto groups = join_all(4);
  on_every_rank(3, [&](std::size_t thread) {
    if (thread == 2) {
      return;
    }
    const auto all =
        groups[thread]->control().all_gather("the plan", {}, Deadline::after(milliseconds(200)));
    ASSERT_FALSE(all.has_value());
    EXPECT_EQ(all.error().code(), StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(contains(all.error().message(), "'the plan'"));
    EXPECT_TRUE(contains(all.error().message(), "ranks 2 and 3 did not call"))
        << all.error().message();
  });
}

TEST(StarGroup, DifferentPurposesNameBothRanks) {
  const auto groups = join_all(3);
  on_every_rank(3, [&](std::size_t rank) {
    const auto all = groups[rank]->control().all_gather(
        rank == 2 ? "the weights" : "the plan", {}, Deadline::after(seconds(20)));
    ASSERT_FALSE(all.has_value());
    EXPECT_EQ(all.error().code(), StatusCode::kInvalidArgument);
    for (const char* part : {"rank 2", "'the plan'", "'the weights'"}) {
      EXPECT_TRUE(contains(all.error().message(), part)) << all.error().message();
    }
  });
}

TEST(StarGroup, NothingIsLeftAfterwards) {
  static_cast<void>(join_all(2));  // whatever the first use of the resolver opens, it keeps
  const std::size_t descriptors = entries("/proc/self/fd");
  const std::size_t threads = entries("/proc/self/task");
  {
    const auto groups = join_all(4);
    EXPECT_GT(entries("/proc/self/fd"), descriptors);
    groups[1]->leave();
  }
  EXPECT_EQ(entries("/proc/self/fd"), descriptors);
  EXPECT_EQ(entries("/proc/self/task"), threads);
}

}  // namespace
}  // namespace stretto::rendezvous

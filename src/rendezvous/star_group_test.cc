// SPDX-License-Identifier: Apache-2.0
//
// Groups over real sockets on the loopback interface; ranks are threads.
#include "rendezvous/group_test_support.hpp"
#include "rendezvous/socket.hpp"

#include <cstring>

#include <dirent.h>
#include <gtest/gtest.h>

namespace stretto::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

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

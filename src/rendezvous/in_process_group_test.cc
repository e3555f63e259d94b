// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/group_test_support.hpp"

#include "stretto/group.hpp"

#include <gtest/gtest.h>

namespace stretto::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(InProcessGroup, GathersBlobsByRank) {
  for (const std::size_t size : {1U, 2U, 3U, 4U, 7U}) {
    const auto groups = Group::in_process(size);
    on_every_rank(size, [&](std::size_t rank) {
      EXPECT_EQ(index_of(groups[rank]->rank()), rank);
      for (int round = 0; round < 20; ++round) {
        const std::string mine(rank, static_cast<char>('a' + round));
        const auto all = groups[rank]->control().all_gather(
            "round " + std::to_string(round), as_blob(mine), Deadline::after(seconds(20)));
        ASSERT_TRUE(all.has_value()) << all.error().to_string();
        ASSERT_EQ(all->size(), size);
        for (std::size_t other = 0; other < size; ++other) {
          EXPECT_EQ(as_text((*all)[other]), std::string(other, static_cast<char>('a' + round)));
        }
      }
    });
  }
}

TEST(InProcessGroup, DeadlineNamesWhoDidNotCall) {
  const auto groups = Group::in_process(4);
  on_every_rank(2, [&](std::size_t rank) {
    const auto all =
        groups[rank]->control().all_gather("the plan", {}, Deadline::after(milliseconds(50)));
    ASSERT_FALSE(all.has_value());
    EXPECT_EQ(all.error().code(), StatusCode::kDeadlineExceeded);
    EXPECT_NE(all.error().message().find("2 and 3 did not call"), std::string::npos)
        << all.error().message();
  });
}

TEST(InProcessGroup, DifferentPurposesNameBothRanks) {
  const auto groups = Group::in_process(2);
  on_every_rank(2, [&](std::size_t rank) {
    const auto all = groups[rank]->control().all_gather(
        rank == 0 ? "the plan" : "the weights", {}, Deadline::after(seconds(20)));
    ASSERT_FALSE(all.has_value());
    EXPECT_EQ(all.error().code(), StatusCode::kInvalidArgument);
    for (const char* part : {"rank 0", "rank 1", "'the plan'", "'the weights'"}) {
      EXPECT_NE(all.error().message().find(part), std::string::npos) << all.error().message();
    }
  });
}

TEST(InProcessGroup, AbortCarriesItsReasonAndRingsTheBell) {
  const auto groups = Group::in_process(3);
  EXPECT_TRUE(groups[0]->control().health().is_ok());
  EXPECT_FALSE(readable(groups[0]->control().descriptor(), Deadline::after(milliseconds(0))));
  groups[2]->control().abort({StatusCode::kAborted, "loss is NaN"});
  EXPECT_EQ(groups[0]->control().health().code(), StatusCode::kPeerLost);
  EXPECT_EQ(groups[0]->control().health().message(), "rank 2 gave up: loss is NaN");
  EXPECT_TRUE(readable(groups[0]->control().descriptor(), Deadline::after(milliseconds(0))));
  EXPECT_TRUE(groups[2]->control().health().is_ok());
}

TEST(InProcessGroup, AbortWakesWhoWaits) {
  const auto groups = Group::in_process(2);
  on_every_rank(2, [&](std::size_t rank) {
    if (rank == 1) {
      groups[1]->control().abort({StatusCode::kAborted, "no memory"});
      return;
    }
    const auto all = groups[0]->control().all_gather("x", {}, Deadline::after(seconds(60)));
    ASSERT_FALSE(all.has_value());
    EXPECT_EQ(all.error().code(), StatusCode::kPeerLost);
  });
}

TEST(InProcessGroup, LeavingIsNotALossButEndsGathers) {
  const auto groups = Group::in_process(2);
  groups[1]->leave();
  EXPECT_TRUE(groups[0]->control().health().is_ok());
  const auto all = groups[0]->control().all_gather("x", {}, Deadline::after(seconds(60)));
  ASSERT_FALSE(all.has_value());
  EXPECT_NE(all.error().message().find("rank 1 has left"), std::string::npos);
}

TEST(InProcessGroup, GoingWithoutGoodbyeIsALoss) {
  auto groups = Group::in_process(2);
  groups[1].reset();
  EXPECT_EQ(groups[0]->control().health().code(), StatusCode::kPeerLost);
  EXPECT_NE(groups[0]->control().health().message().find("rank 1 was lost"),
            std::string_view::npos);
}

}  // namespace
}  // namespace stretto::rendezvous

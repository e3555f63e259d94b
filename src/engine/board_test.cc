// SPDX-License-Identifier: Apache-2.0
#include "engine/board.hpp"

#include <gtest/gtest.h>

namespace stretto::engine {
namespace {

Interval between(int begin_ms, int end_ms) {
  return {TimePoint(std::chrono::milliseconds(begin_ms)),
          TimePoint(std::chrono::milliseconds(end_ms))};
}

TEST(Intervals, OverlapIsTheTimeInBoth) {
  Intervals busy;
  busy.add(between(0, 60));
  busy.add(between(80, 100));
  Intervals waits;
  waits.add(between(50, 90));
  EXPECT_DOUBLE_EQ(busy.total_ms(), 80);
  EXPECT_DOUBLE_EQ(Intervals::overlap_ms(busy, waits), 20);
  EXPECT_DOUBLE_EQ(Intervals::overlap_ms(waits, busy), 20);
}

TEST(Intervals, TooManyGrowTogether) {
  Intervals many;
  for (int i = 0; i < 1000; ++i) {
    many.add(between(10 * i, 10 * i + 1));
  }
  EXPECT_GE(many.total_ms(), 1000);
}

TEST(Board, KeepsTheFirstError) {
  Board board(0);
  board.fail({StatusCode::kPeerLost, "first"});
  board.fail({StatusCode::kInternal, "second"});
  EXPECT_EQ(board.failure().message(), "first");
}

}  // namespace
}  // namespace stretto::engine

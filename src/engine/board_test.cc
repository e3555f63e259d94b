// SPDX-License-Identifier: Apache-2.0
#include "engine/board.hpp"

#include <thread>

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

TEST(Signal, WaitEndsAtItsDeadline) {
  Signal signal;
  EXPECT_FALSE(signal.wait([] { return false; }, Deadline::after(std::chrono::milliseconds(1))));
}

TEST(Signal, NeverLosesANotification) {
  Signal signal;
  std::atomic<int> value{0};
  constexpr int kRounds = 2000;
  std::thread other([&] {
    for (int i = 0; i < kRounds; ++i) {
      value.fetch_add(1);
      signal.notify();
    }
  });
  for (int i = 1; i <= kRounds; ++i) {
    ASSERT_TRUE(
        signal.wait([&] { return value.load() >= i; }, Deadline::after(std::chrono::seconds(10))));
  }
  other.join();
}

TEST(Board, KeepsTheFirstError) {
  Board board(0);
  board.fail({StatusCode::kPeerLost, "first"});
  board.fail({StatusCode::kInternal, "second"});
  EXPECT_EQ(board.failure().message(), "first");
}

}  // namespace
}  // namespace stretto::engine

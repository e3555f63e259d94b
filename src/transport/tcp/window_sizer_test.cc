// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/window_sizer.hpp"

#include <algorithm>

#include <gtest/gtest.h>

namespace stretto::transport {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

/// Feeds a sizer with a path of so many bytes per second and such a round trip, where the sender is
/// never short of bytes but for the window.
std::size_t settled(double rate, microseconds round_trip, milliseconds how_long) {
  WindowSizer sizer{std::chrono::nanoseconds(round_trip)};
  TimePoint now{std::chrono::hours(1)};
  const TimePoint end = now + how_long;
  while (now < end) {
    constexpr std::size_t kRead = 16 << 10;
    const double limited = static_cast<double>(sizer.window()) /
                           std::max(std::chrono::duration<double>(round_trip).count(), 20e-6);
    now += std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(kRead / std::min(rate, limited)));
    sizer.came(kRead, now);
  }
  return sizer.window();
}

TEST(WindowSizer, StaysNearItsFloorOnASlowLink) {
  const std::size_t window = settled(20e6, microseconds(100), milliseconds(500));
  EXPECT_GE(window, WindowSizer::kFloorBytes);
  EXPECT_LE(window, WindowSizer::kFloorBytes + (16U << 10));
}

// A thread that is busy elsewhere finds a whole window waiting, and reads it at the rate of memory.
TEST(WindowSizer, ALateReaderDoesNotMakeItGrow) {
  for (const auto round_trip : {microseconds(50), microseconds(500), microseconds(5000)}) {
    WindowSizer sizer{std::chrono::nanoseconds(round_trip)};
    TimePoint now{std::chrono::hours(1)};
    for (int i = 0; i < 2000; ++i) {
      now += milliseconds(10);
      // 20 MB/s: 200 KB in that time, but never more than the window.
      std::size_t waiting = std::min<std::size_t>(sizer.window(), 200'000);
      while (waiting > 0) {
        const std::size_t read = std::min<std::size_t>(waiting, 16 << 10);
        now += microseconds(2);
        sizer.came(read, now);
        waiting -= read;
      }
    }
    const double ahead =
        2 * 20e6 * std::chrono::duration<double>(round_trip + microseconds(200)).count();
    EXPECT_LE(static_cast<double>(sizer.window()), 1.5 * (WindowSizer::kFloorBytes + ahead));
  }
}

TEST(WindowSizer, GrowsUntilALongPathIsFull) {
  // 1 Gbit/s with 20 ms there and back: 2.5 MB are on their way.
  EXPECT_GE(settled(125e6, milliseconds(20), milliseconds(2'000)), 2'500'000U);
}

TEST(WindowSizer, GrowsOnAFastLink) {
  EXPECT_GE(settled(2e9, microseconds(20), milliseconds(100)), std::size_t{256} << 10);
}

TEST(WindowSizer, HasALimit) {
  EXPECT_EQ(settled(10e9, milliseconds(100), milliseconds(20'000)), WindowSizer::kMostBytes);
}

TEST(WindowSizer, APauseIsNoSlowness) {
  WindowSizer sizer{std::chrono::nanoseconds(0)};
  TimePoint now{std::chrono::hours(1)};
  const auto burst = [&] {
    for (int i = 0; i < 400; ++i) {
      now += microseconds(10);
      sizer.came(16 << 10, now);
    }
  };
  burst();
  const std::size_t busy = sizer.window();
  now += milliseconds(300);
  sizer.came(1000, now);
  EXPECT_EQ(sizer.window(), busy);
  burst();
  EXPECT_NEAR(static_cast<double>(sizer.window()),
              static_cast<double>(busy),
              0.02 * static_cast<double>(busy));
}

TEST(WindowSizer, MayBeFixed) {
  WindowSizer sizer{std::size_t{4096}};
  sizer.came(1 << 30, TimePoint(std::chrono::hours(1)));
  EXPECT_EQ(sizer.window(), 4096U);
}

}  // namespace
}  // namespace stretto::transport

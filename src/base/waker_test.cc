// SPDX-License-Identifier: Apache-2.0
#include "base/waker.hpp"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>
#include <poll.h>

namespace stretto {
namespace {

TEST(Waker, CostsNothingWhileNobodySleeps) {
  auto waker = Waker::make().value();
  waker.wake();
  pollfd descriptor{waker.descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&descriptor, 1, 0), 0);
}

TEST(Waker, ANudgeWakesASleeperButNotFromANap) {
  auto waker = Waker::make().value();
  pollfd descriptor{waker.descriptor(), POLLIN, 0};
  waker.prepare(Waker::Sleep::kNap);
  waker.nudge();
  EXPECT_EQ(::poll(&descriptor, 1, 0), 0);
  waker.wake();
  EXPECT_EQ(::poll(&descriptor, 1, 0), 1);
  waker.finish();
  waker.prepare();
  waker.nudge();
  EXPECT_EQ(::poll(&descriptor, 1, 0), 1);
}

TEST(Waker, StaysReadableNoLongerThanItsSleep) {
  auto waker = Waker::make().value();
  pollfd descriptor{waker.descriptor(), POLLIN, 0};
  for (int i = 0; i < 3; ++i) {
    waker.prepare();
    waker.wake();
    waker.wake();
    EXPECT_EQ(::poll(&descriptor, 1, 0), 1);
    waker.finish();
    EXPECT_EQ(::poll(&descriptor, 1, 0), 0);
    waker.prepare();
    waker.finish();  // nobody called
    EXPECT_EQ(::poll(&descriptor, 1, 0), 0);
  }
}

TEST(Waker, NeverLosesAWakeUp) {
  auto waker = Waker::make().value();
  std::atomic<int> work{0};
  constexpr int kRounds = 2000;
  std::thread other([&] {
    for (int i = 0; i < kRounds; ++i) {
      work.fetch_add(1, std::memory_order_release);
      i % 2 == 0 ? waker.wake() : waker.nudge();
    }
  });
  int seen = 0;
  while (seen < kRounds) {
    // Naps come between sleeps, as long as there is somebody to end a sleep.
    waker.prepare(seen % 3 == 0 ? Waker::Sleep::kNap : Waker::Sleep::kDeep);
    if (work.load(std::memory_order_acquire) == seen) {
      pollfd descriptor{waker.descriptor(), POLLIN, 0};
      const bool nap = seen % 3 == 0;
      const int called = ::poll(&descriptor, 1, nap ? 1 : 10'000);
      ASSERT_TRUE(nap || called == 1) << "slept through work after " << seen;
    }
    waker.finish();
    seen = work.load(std::memory_order_acquire);
  }
  other.join();
}

}  // namespace
}  // namespace stretto

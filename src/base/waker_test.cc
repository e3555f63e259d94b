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

TEST(Waker, NeverLosesAWakeUp) {
  auto waker = Waker::make().value();
  std::atomic<int> work{0};
  constexpr int kRounds = 2000;
  std::thread other([&] {
    for (int i = 0; i < kRounds; ++i) {
      work.fetch_add(1, std::memory_order_release);
      waker.wake();
    }
  });
  int seen = 0;
  while (seen < kRounds) {
    waker.prepare();
    if (work.load(std::memory_order_acquire) == seen) {
      pollfd descriptor{waker.descriptor(), POLLIN, 0};
      ASSERT_EQ(::poll(&descriptor, 1, 10'000), 1) << "slept through work after " << seen;
    }
    waker.finish();
    seen = work.load(std::memory_order_acquire);
  }
  other.join();
}

}  // namespace
}  // namespace stretto

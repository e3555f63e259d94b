// SPDX-License-Identifier: Apache-2.0
#include "base/signal.hpp"

#include <array>
#include <thread>

#include <gtest/gtest.h>

namespace stretto {
namespace {

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

TEST(Signal, OneNotificationEndsOneWaitAtATime) {
  Signal signal;
  constexpr int kThreads = 3;
  constexpr int kTickets = 3000;
  std::atomic<int> tickets{0};
  std::array<std::thread, kThreads> takers;
  std::atomic<int> taken{0};
  const auto take = [&] {
    int there = tickets.load();
    while (there > 0 && !tickets.compare_exchange_weak(there, there - 1)) {
    }
    return there > 0;
  };
  for (std::thread& taker : takers) {
    taker = std::thread([&] {
      const Deadline deadline = Deadline::after(std::chrono::seconds(30));
      while (taken.load() < kTickets && !deadline.passed()) {
        signal.wait([&] { return tickets.load() > 0 || taken.load() == kTickets; }, deadline);
        if (take() && taken.fetch_add(1) + 1 == kTickets) {
          signal.notify();
        }
      }
    });
  }
  // Only who sees all of them asleep has to call one: who is awake looks again before it sleeps.
  for (int i = 0; i < kTickets; ++i) {
    tickets.fetch_add(1);
    if (signal.waiting() == kThreads) {
      signal.notify_one();
    }
  }
  for (std::thread& taker : takers) {
    taker.join();
  }
  EXPECT_EQ(taken.load(), kTickets);
}

}  // namespace
}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
// Between ready() and the last send nothing is allocated and no lock is taken, on every way that
// gradients go by default, whoever adds.
#include "base/mutex.hpp"
#include "counters.hpp"
#include "two_ranks.hpp"

#include <array>
#include <barrier>
#include <memory>

#include <gtest/gtest.h>

namespace stretto::testing {
namespace {

constexpr std::size_t kWarmUp = 40;
constexpr std::size_t kSteps = 24;

struct Window {
  Counters counters;
  std::array<std::size_t, 2> chunks{};
};

/// Steps of two ranks, of which the last kSteps are counted.
Window count(const Way& way) {
  Window window;
  std::barrier all(2);
  run_two(way, [&](std::size_t rank, Engine& engine) {
    for (std::size_t i = 0; i < kWarmUp; ++i) {
      step(engine);
    }
    all.arrive_and_wait();
    if (rank == 0) {
      start_counting();
    }
    all.arrive_and_wait();
    for (std::size_t i = 0; i < kSteps; ++i) {
      window.chunks[rank] += step(engine).chunks;
    }
    all.arrive_and_wait();
    if (rank == 0) {
      window.counters = stop_counting();
    }
    all.arrive_and_wait();
  });
  return window;
}

class HotPathOf : public ::testing::TestWithParam<Way> {};

TEST_P(HotPathOf, AllocatesNothingAndTakesNoLock) {
  const Window window = count(GetParam());
  EXPECT_GE(window.chunks[0], 1000U);
  EXPECT_GE(window.chunks[1], 1000U);
  EXPECT_EQ(window.counters.allocations, 0U);
  EXPECT_EQ(window.counters.frees, 0U);
  EXPECT_EQ(window.counters.locks, 0U);
  if (HasFailure()) {
    print_places();
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, HotPathOf, ::testing::ValuesIn(ways()), [](const auto& way) {
  return way.param.name;
});

TEST(HotPath, TheCountersCount) {
  Mutex mutex;
  start_counting();
  auto number = std::make_unique<int>(1);
  asm volatile("" : : "r"(number.get()) : "memory");  // or the compiler leaves both out
  number.reset();
  { const MutexLock lock(mutex); }
  const Counters counters = stop_counting();
  EXPECT_GE(counters.allocations, 1U);
  EXPECT_GE(counters.frees, 1U);
  EXPECT_GE(counters.locks, 1U);
}

}  // namespace
}  // namespace stretto::testing

// SPDX-License-Identifier: Apache-2.0
#include "virtual_accelerator.hpp"

#include <gtest/gtest.h>

namespace stretto::cli {
namespace {

using std::chrono::microseconds;

TEST(VirtualAccelerator, TakesAtLeastWhatWasAskedWhetherInManyOrFewPieces) {
  VirtualAccelerator accelerator;
  accelerator.restart();
  for (int i = 0; i < 100; ++i) {
    accelerator.compute(microseconds(i % 7 == 0 ? 60 : 3));  // most are put off
  }
  EXPECT_GE(accelerator.finish(), microseconds(15 * 60 + 85 * 3));
}

TEST(VirtualAccelerator, TimeInWhichItWasHeldUpIsNotMadeGood) {
  VirtualAccelerator accelerator;
  const TimePoint begin = Clock::now();
  accelerator.restart();
  accelerator.compute(microseconds(100));
  accelerator.hold(microseconds(500));
  accelerator.compute(microseconds(100));
  EXPECT_GE(accelerator.finish(), microseconds(200));
  EXPECT_GE(Clock::now() - begin, microseconds(700));
}

TEST(VirtualAccelerator, AWaitIsNotMadeGoodAfterARestart) {
  VirtualAccelerator accelerator;
  accelerator.restart();
  accelerator.compute(microseconds(200));
  EXPECT_GE(accelerator.finish(), microseconds(200));
  const TimePoint waited_until = Clock::now() + microseconds(700);
  while (Clock::now() < waited_until) {
  }
  accelerator.restart();
  accelerator.compute(microseconds(400));
  EXPECT_GE(Clock::now() - waited_until, microseconds(400));
}

}  // namespace
}  // namespace stretto::cli

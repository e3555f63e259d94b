// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <cstdlib>

#include <gtest/gtest.h>

namespace stretto {
namespace {

/// The level is read once in a process, so each case is a process of its own.
void say_all_at(const char* level) {
  ::setenv("STRETTO_LOG", level, 1);
  log(LogLevel::kInfo, "some news");
  log(LogLevel::kWarning, "a problem");
  std::exit(0);
}

class LogDeathTest : public ::testing::Test {
 protected:
  LogDeathTest() { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(LogDeathTest, AnUnknownLevelIsSaidOnceAndTheUsualOneHolds) {
  EXPECT_EXIT(say_all_at("loud"),
              ::testing::ExitedWithCode(0),
              "^stretto: warning: STRETTO_LOG is not heeded: there is no level 'loud'; choose "
              "debug, info, warning, error or off\nstretto: warning: a problem\n$");
}

TEST_F(LogDeathTest, AKnownLevelHoldsWithoutAWord) {
  EXPECT_EXIT(say_all_at("info"),
              ::testing::ExitedWithCode(0),
              "^stretto: info: some news\nstretto: warning: a problem\n$");
  EXPECT_EXIT(say_all_at(""), ::testing::ExitedWithCode(0), "^stretto: warning: a problem\n$");
  EXPECT_EXIT(say_all_at("off"), ::testing::ExitedWithCode(0), "^$");
}

}  // namespace
}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
#include "base/fault_point.hpp"

#include <csignal>

#include <gtest/gtest.h>

namespace stretto {
namespace {

class FaultPoint : public ::testing::Test {
 protected:
  ~FaultPoint() override { static_cast<void>(arm_fault("", 0)); }
};

TEST_F(FaultPoint, CountsOnlyTheArmedPlaceOfTheArmedRank) {
  ASSERT_TRUE(arm_fault("here@1:delay=1ns", 2).is_ok());
  fault_point("here", 2);
  fault_point("here", 1);
  fault_point("there", 2);
  fault_point("here", 2);
  EXPECT_EQ(fault_passes(), 2U);
  ASSERT_TRUE(arm_fault("", 2).is_ok());
  fault_point("here", 2);
  EXPECT_EQ(fault_passes(), 0U);
}

TEST_F(FaultPoint, KillsAtTheGivenPass) {
  EXPECT_EXIT(
      {
        static_cast<void>(arm_fault("here@3", 0));
        for (int pass = 1; pass <= 3; ++pass) {
          if (fault_passes() + 1 != static_cast<std::size_t>(pass)) {
            std::_Exit(1);
          }
          fault_point("here", 0);
        }
        std::_Exit(2);
      },
      ::testing::KilledBySignal(SIGKILL),
      "");
}

TEST_F(FaultPoint, RefusesWhatItCannotRead) {
  for (const char* text : {"here", "@1", "here@", "here@0", "here@x", "here@1:burn", "here@1:"}) {
    EXPECT_EQ(arm_fault(text, 0).code(), StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace stretto

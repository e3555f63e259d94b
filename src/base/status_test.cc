// SPDX-License-Identifier: Apache-2.0
#include "stretto/status.hpp"

#include "stretto/types.hpp"

#include <gtest/gtest.h>

namespace stretto {
namespace {

Status passes_on(const Status& status) {
  STRETTO_TRY(status);
  return {};
}

Result<int> doubles(const Result<int>& value) {
  STRETTO_TRY_ASSIGN(const int number, value);
  return 2 * number;
}

TEST(Status, SuccessHasNoMessage) {
  EXPECT_TRUE(Status().is_ok());
  EXPECT_EQ(Status().to_string(), "ok");
}

TEST(Status, ErrorSaysCodeAndSentence) {
  const Status lost(StatusCode::kPeerLost, "rank 2 closed its connection");
  EXPECT_FALSE(lost.is_ok());
  EXPECT_EQ(lost.to_string(), "peer lost: rank 2 closed its connection");
}

TEST(Status, TryPassesErrorsOnAndLetsSuccessThrough) {
  EXPECT_TRUE(passes_on({}).is_ok());
  EXPECT_EQ(passes_on({StatusCode::kAborted, "x"}).code(), StatusCode::kAborted);
  EXPECT_EQ(doubles(21).value(), 42);
  EXPECT_EQ(doubles(fail(StatusCode::kInternal, "y")).error().message(), "y");
}

TEST(Types, ShapesCountAndPrint) {
  EXPECT_EQ(element_count(Shape{}), 1U);
  EXPECT_EQ(element_count(Shape{3, 0, 2}), 0U);
  EXPECT_EQ(element_count(Shape{64, 3, 7, 7}), 9408U);
  EXPECT_EQ(to_string(Shape{64, 3, 7, 7}), "[64, 3, 7, 7]");
}

}  // namespace
}  // namespace stretto

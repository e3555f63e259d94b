// SPDX-License-Identifier: Apache-2.0
#include "profile.hpp"

#include <cmath>
#include <string>

#include <gtest/gtest.h>

namespace stretto::cli {
namespace {

const std::string kHead = "words, and more words\n1\n";

TEST(Profile, LayersComeInTheOrderOfTheFile) {
  const auto profile = parse_profile(kHead + "3\n552.5,4000\n0,8192\n1e1,0\n", "p");
  ASSERT_TRUE(profile.has_value()) << profile.error().to_string();
  ASSERT_EQ(profile->size(), 3U);
  EXPECT_EQ((*profile)[0].backward_us, 552.5);
  EXPECT_EQ((*profile)[0].bytes, 4000);
  EXPECT_EQ((*profile)[2].backward_us, 10);
}

TEST(Profile, LinesMayEndLikeOnWindowsAndTheLastMayLackItsEnd) {
  const auto profile = parse_profile("words\r\n1\r\n2\r\n1,4\r\n2,8", "p");
  ASSERT_TRUE(profile.has_value()) << profile.error().to_string();
  EXPECT_EQ((*profile)[1].bytes, 8);
}

TEST(Profile, ALayerWithoutTimeOrBytesKeepsOneElement) {
  const auto profile = parse_profile(kHead + "2\n0,0\n100,4000\n", "p").value();
  const auto layers = scale_profile(profile, {.time = 2, .bytes = 0.5, .forward_ratio = 0.25});
  EXPECT_EQ(layers[0].backward.count(), 0);
  EXPECT_EQ(layers[0].forward.count(), 0);
  EXPECT_EQ(layers[0].elements, 1U);
  EXPECT_EQ(layers[1].backward.count(), 200'000);
  EXPECT_EQ(layers[1].forward.count(), 50'000);
  EXPECT_EQ(layers[1].elements, 500U);
}

TEST(Profile, ElementsAreRoundedDownAsThePeerDoes) {
  const auto layers = scale_profile({{1, 4003}}, {.time = 1, .bytes = 0.0375, .forward_ratio = 0});
  EXPECT_EQ(layers[0].elements, 37U);  // 4003 * 0.0375 / 4 = 37.528
}

TEST(Profile, GarbageIsRefusedByItsLine) {
  const struct {
    std::string text;
    std::string line;
  } cases[] = {
      {"", "line 1"},
      {"words\n1\n", "line 3"},
      {"words\none\n1\n1,4\n", "line 2"},
      {"words\n1\n-1\n1,4\n", "line 3"},
      {kHead + "2\n1,4\n", "line 3"},
      {kHead + "0\n", "line 3"},
      {kHead + "1\n1;4\n", "line 4"},
      {kHead + "1\n1,4,5\n", "line 4"},
      {kHead + "2\n1,4\n\n", "line 3"},
      {kHead + "2\n1,4\n-1,4\n", "line 5"},
      {kHead + "1\nnan,4\n", "line 4"},
      {kHead + "1\n1,inf\n", "line 4"},
      {kHead + "1\n1,\n", "line 4"},
      {std::string(100, '\0'), "line 2"},
  };
  for (const auto& [text, line] : cases) {
    const auto profile = parse_profile(text, "some.log");
    ASSERT_FALSE(profile.has_value()) << text;
    EXPECT_EQ(profile.error().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(profile.error().message().find("some.log, " + line), std::string::npos)
        << profile.error().message();
  }
}

TEST(Profile, AFileThatIsNotThereIsNamed) {
  for (const std::string path : {"/nowhere/profile.log", "/"}) {
    const auto profile = read_profile(path);
    ASSERT_FALSE(profile.has_value());
    EXPECT_EQ(profile.error().code(), StatusCode::kUnavailable);
    EXPECT_NE(profile.error().message().find("profile " + path + ":"), std::string::npos);
  }
}

TEST(Profile, ScalesMustBeNumbersFromZero) {
  EXPECT_TRUE(ReplayScale{}.validate().is_ok());
  EXPECT_FALSE((ReplayScale{.time = -1}).validate().is_ok());
  EXPECT_FALSE((ReplayScale{.bytes = std::nan("")}).validate().is_ok());
  EXPECT_FALSE((ReplayScale{.forward_ratio = INFINITY}).validate().is_ok());
}

}  // namespace
}  // namespace stretto::cli

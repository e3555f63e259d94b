// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace fashion_mnist {
namespace {

std::string written(const std::string& content) {
  const std::string path = testing::TempDir() + "fashion_mnist_text";
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

TEST(Text, NumbersItsCharactersInTheirOrder) {
  const auto text = load_text(written("banana\xff banana ban"), 1);
  ASSERT_TRUE(text.has_value());
  EXPECT_EQ(text->alphabet, 5U);
  const std::vector<std::uint8_t> expected{2, 1, 3, 1, 3, 1, 4, 0, 2, 1, 3, 1, 3, 1, 0, 2, 1, 3};
  EXPECT_EQ(text->characters, expected);
  EXPECT_EQ(text->train().size(), 9U);
  EXPECT_EQ(text->test().size(), 9U);
}

TEST(Text, KeepsTheLastTenthForJudging) {
  const auto text = load_text(written(std::string(1000, 'a')), 100);
  ASSERT_TRUE(text.has_value());
  EXPECT_EQ(text->train().size(), 900U);
}

TEST(Text, OneThatIsTooShortOrNotThereIsRefused) {
  EXPECT_EQ(load_text(written(std::string(1000, 'a')), 101).error().code(),
            stretto::StatusCode::kInvalidArgument);
  const auto missing = load_text("/nowhere/text", 1);
  EXPECT_EQ(missing.error().code(), stretto::StatusCode::kUnavailable);
  EXPECT_NE(missing.error().message().find("bible-kjv-text"), std::string::npos);
}

TEST(Text, WindowsLieWithinAndAreOthersForEachSeedStepRankAndNumber) {
  std::set<std::size_t> starts;
  for (std::uint64_t i = 0; i < 4; ++i) {
    for (const std::size_t start : {window_start(i + 1, 0, 0, 0, 1'000'000, 129),
                                    window_start(0, i + 1, 0, 0, 1'000'000, 129),
                                    window_start(0, 0, i + 1, 0, 1'000'000, 129),
                                    window_start(0, 0, 0, i + 1, 1'000'000, 129)}) {
      starts.insert(start);
      EXPECT_LE(start, 1'000'000U - 129);
    }
  }
  EXPECT_EQ(starts.size(), 16U);
  EXPECT_EQ(window_start(1, 2, 3, 4, 129, 129), 0U) << "the only place that there is";
}

}  // namespace
}  // namespace fashion_mnist

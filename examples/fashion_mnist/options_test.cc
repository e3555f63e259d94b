// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace fashion_mnist {
namespace {

std::optional<int> parse_words(std::vector<std::string> words, Options& options) {
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  return parse(static_cast<int>(arguments.size()), arguments.data(), options);
}

TEST(Options, TheLastOfAnOptionCounts) {
  Options options;
  EXPECT_EQ(parse_words({"fashion_mnist",
                         "--model",
                         "cnn",
                         "--compare-sequential",
                         "--model",
                         "mlp",
                         "--compare-sequential",
                         "--seed=2",
                         "--seed=3"},
                        options),
            std::nullopt);
  EXPECT_EQ(options.model, "mlp");
  EXPECT_EQ(options.seed, 3U);
  EXPECT_TRUE(options.compare_sequential);
}

TEST(Options, AWrongOneIsRefusedAndHelpIsNoError) {
  Options options;
  EXPECT_EQ(parse_words({"fashion_mnist", "--model", "cnn", "--model", "vgg"}, options), 2);
  EXPECT_EQ(parse_words({"fashion_mnist", "--steps", "3", "--epochs", "1"}, options), 2);
  EXPECT_EQ(parse_words({"fashion_mnist", "--help"}, options), 0);
  EXPECT_EQ(parse_words({"fashion_mnist", "--model", "transformer"}, options), 2) << "no text";
}

TEST(Options, WhatIsNotGivenSuitsTheModel) {
  Options net;
  EXPECT_EQ(parse_words({"fashion_mnist"}, net), std::nullopt);
  EXPECT_EQ(net.data, "/usr/share/datasets/fashion-mnist");
  EXPECT_EQ(net.test_count, 10'000U);
  Options text;
  EXPECT_EQ(parse_words({"fashion_mnist", "--model", "transformer", "--data", "t"}, text),
            std::nullopt);
  EXPECT_EQ(text.test_count, 400U);
  EXPECT_EQ(text.learning_rate, 0.1);
}

}  // namespace
}  // namespace fashion_mnist

// SPDX-License-Identifier: Apache-2.0
#include "config_file.hpp"

#include <string>

#include <gtest/gtest.h>

namespace stretto::cli {
namespace {

using Type = ConfigEntry::Type;

TEST(ConfigFile, TextsAndNumbersAreReadWithTheirLines) {
  const auto entries = parse_config(
      "# how gradients travel\n"
      "schedule = \"sequential\"   # for comparison\n"
      "\n"
      "  ports=20_000\r\n"
      "trace = 'C:\\odd # name'\n"
      "token = \"a \\\"b\\\" \\\\\"",
      "f.toml");
  ASSERT_TRUE(entries.has_value()) << entries.error().to_string();
  ASSERT_EQ(entries->size(), 4U);
  EXPECT_EQ((*entries)[0].key, "schedule");
  EXPECT_EQ((*entries)[0].value, "sequential");
  EXPECT_EQ((*entries)[0].type, Type::kText);
  EXPECT_EQ((*entries)[0].line, 2U);
  EXPECT_EQ((*entries)[1].key, "ports");
  EXPECT_EQ((*entries)[1].value, "20000");
  EXPECT_EQ((*entries)[1].type, Type::kNumber);
  EXPECT_EQ((*entries)[1].line, 4U);
  EXPECT_EQ((*entries)[2].value, "C:\\odd # name");
  EXPECT_EQ((*entries)[3].value, "a \"b\" \\");
}

TEST(ConfigFile, AnEmptyFileSaysNothing) {
  EXPECT_TRUE(parse_config("", "f.toml")->empty());
  EXPECT_TRUE(parse_config("\n  # only words", "f.toml")->empty());
}

TEST(ConfigFile, WhatCannotBeReadIsNamedByFileAndLine) {
  const struct {
    std::string text;
    std::string says;
  } cases[] = {
      {"[run]\n", "f.toml:1: tables"},
      {"\nschedule\n", "f.toml:2: this is not key = value"},
      {"= 5\n", "f.toml:1: this is not key = value"},
      {"schedule =\n", "f.toml:1: this is not key = value"},
      {"schedule = # none\n", "f.toml:1: this is not key = value"},
      {"a.b = 5\n", "f.toml:1: this is not key = value"},
      {"schedule = backward\n", "f.toml:1: schedule: backward is neither"},
      {"ports = 1.5\n", "f.toml:1: ports: 1.5 is neither"},
      {"ports = [1]\n", "f.toml:1: ports: [1] is neither"},
      {"ports = true\n", "f.toml:1: ports: true is neither"},
      {"ports = _1\n", "f.toml:1: ports: _1 is neither"},
      {"ports = -\n", "f.toml:1: ports: - is neither"},
      {"link = \"1gbit\n", "f.toml:1: link: the text is not closed"},
      {"link = \"1\\u0041\"\n", "f.toml:1: link: the text is not closed, or has another escape"},
      {"link = \"\\", "f.toml:1: link: the text is not closed"},
      {"link = \"1gbit\" 5\n", "f.toml:1: link: something follows the value: 5"},
      {"ports = 1\n\nports = 2\n", "f.toml:3: ports is set on line 1 already"},
  };
  for (const auto& [text, says] : cases) {
    const auto entries = parse_config(text, "f.toml");
    ASSERT_FALSE(entries.has_value()) << text;
    EXPECT_EQ(entries.error().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(entries.error().message().starts_with(says)) << entries.error().message();
  }
}

TEST(ConfigFile, AFileThatIsNotThereIsNamed) {
  for (const std::string path : {"/nowhere/f.toml", "/"}) {
    const auto entries = read_config(path);
    ASSERT_FALSE(entries.has_value());
    EXPECT_EQ(entries.error().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(entries.error().message().starts_with("cannot read the configuration file " + path))
        << entries.error().message();
  }
}

}  // namespace
}  // namespace stretto::cli

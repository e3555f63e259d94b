// SPDX-License-Identifier: Apache-2.0
#include "cli/line_prefixer.hpp"

#include <gtest/gtest.h>

namespace stretto::cli {
namespace {

using Bars = LinePrefixer::Bars;

TEST(LinePrefixer, PrintsWholeLinesOnly) {
  LinePrefixer lines("[1] ", Bars::kDrop);
  EXPECT_EQ(lines.take("one\ntw"), "[1] one\n");
  EXPECT_EQ(lines.take("o\nthree"), "[1] two\n");
  EXPECT_EQ(lines.finish(), "[1] three\n");
  EXPECT_EQ(lines.finish(), "");
}

TEST(LinePrefixer, AnyCuttingGivesTheSameLines) {
  const std::string text = "a\n\nbc\r\nlong line\n";
  const std::string expected = "[0] a\n[0] \n[0] bc\n[0] long line\n";
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    LinePrefixer lines("[0] ", Bars::kDrop);
    std::string out;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      out += lines.take(text.substr(at, piece));
    }
    EXPECT_EQ(out + lines.finish(), expected) << piece;
  }
}

TEST(LinePrefixer, RankZerosBarMoves) {
  LinePrefixer lines("[0] ", Bars::kKeep);
  EXPECT_EQ(lines.take("10 %\r"), "[0] 10 %\r");
  EXPECT_EQ(lines.take("20 %\r"), "[0] 20 %\r");
  EXPECT_EQ(lines.take("done\n"), "[0] done\n");
  EXPECT_EQ(lines.take("\r30 %"), "\r");
  EXPECT_EQ(lines.take("\r40 %"), "[0] 30 %\r");
}

TEST(LinePrefixer, OtherRanksShowOnlyWhatRemains) {
  LinePrefixer lines("[1] ", Bars::kDrop);
  EXPECT_EQ(lines.take("10 %\r20 %\rdone\n"), "[1] done\n");
}

TEST(LinePrefixer, EndlessLinesAreCut) {
  LinePrefixer lines("[0] ", Bars::kKeep);
  const std::string out = lines.take(std::string(std::size_t{200} << 10, 'x'));
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 3);
}

}  // namespace
}  // namespace stretto::cli

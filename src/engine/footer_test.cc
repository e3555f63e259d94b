// SPDX-License-Identifier: Apache-2.0
#include "engine/footer.hpp"

#include <vector>

#include <gtest/gtest.h>

namespace stretto::engine {
namespace {

TEST(FooterCode, SumsSayHowManyRanksHaveSetEachFlag) {
  constexpr std::size_t kFlags = 41;
  for (const std::size_t ranks : {1U, 2U, 3U, 4U, 7U, 8U, 100U, 4096U}) {
    const FooterCode code(ranks);
    std::vector<float> sums(code.floats(kFlags), 0.0F);
    std::vector<std::size_t> expected(kFlags, 0);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::vector<float> mine(code.floats(kFlags));
      FooterCode::clear(mine);
      for (std::size_t flag = 0; flag < kFlags; ++flag) {
        if (flag == 0 || (rank * 7 + flag) % 3 == 0) {  // the first: all of them
          code.set(mine, flag);
          ++expected[flag];
        }
      }
      for (std::size_t i = 0; i < sums.size(); ++i) {
        sums[i] += mine[i];
      }
    }
    for (std::size_t flag = 0; flag < kFlags; ++flag) {
      EXPECT_EQ(code.count(sums, flag), expected[flag]) << ranks << " ranks, flag " << flag;
    }
  }
}

TEST(FooterCode, IsShort) {
  EXPECT_EQ(FooterCode(8).floats(163), 24U);  // 7 flags in each
  EXPECT_EQ(FooterCode(1).floats(24), 1U);
  EXPECT_EQ(FooterCode(4096).floats(2), 2U);
}

}  // namespace
}  // namespace stretto::engine

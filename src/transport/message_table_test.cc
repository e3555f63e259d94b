// SPDX-License-Identifier: Apache-2.0
#include "transport/message_table.hpp"

#include <map>
#include <random>

#include <gtest/gtest.h>

namespace stretto::transport {
namespace {

TEST(MessageTable, BehavesLikeAMapUnderRandomUse) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    MessageTable<int> table(4);  // small, so that it wraps, collides and grows
    std::map<std::uint64_t, int> model;
    std::uint64_t next = 0;
    for (int i = 0; i < 4000; ++i) {
      if (random() % 100 < 52 || model.empty()) {
        ++next;
        table.insert(next, i);
        model[next] = i;
      } else {
        auto victim = model.lower_bound(random() % (next + 1));
        victim = victim == model.end() ? model.begin() : victim;
        table.erase(victim->first);
        model.erase(victim);
      }
      ASSERT_EQ(table.size(), model.size());
      const std::uint64_t probe = random() % (next + 2);
      const auto expected = model.find(probe);
      const int* const found = table.find(probe);
      ASSERT_EQ(found != nullptr, expected != model.end());
      ASSERT_TRUE(found == nullptr || *found == expected->second);
    }
    for (const auto& [number, value] : model) {
      ASSERT_NE(table.find(number), nullptr) << number;
      ASSERT_EQ(*table.find(number), value);
    }
  }
}

TEST(MessageTable, KnowsNoNumberZeroAndErasesNothingThatIsNotThere) {
  MessageTable<int> table;
  EXPECT_EQ(table.find(0), nullptr);
  table.erase(7);
  EXPECT_EQ(table.size(), 0U);
}

}  // namespace
}  // namespace stretto::transport

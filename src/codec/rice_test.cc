// SPDX-License-Identifier: Apache-2.0
#include "codec/rice.hpp"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::codec {
namespace {

using Indices = std::vector<std::uint32_t>;
using Bytes = std::vector<std::byte>;

constexpr std::byte kGuard{0x5c};

/// Writes, and checks that nothing lies behind what was written.
Bytes written(const Indices& indices, unsigned parameter, std::size_t room) {
  Bytes wire(room + 16, kGuard);
  const std::size_t bytes = write_indices(indices, parameter, wire.data());
  EXPECT_LE(bytes, room);
  EXPECT_TRUE(std::all_of(wire.begin() + static_cast<std::ptrdiff_t>(bytes),
                          wire.end(),
                          [](std::byte b) { return b == kGuard; }));
  wire.resize(bytes);
  return wire;
}

Indices read(const Bytes& wire, unsigned parameter, std::size_t n, std::size_t count) {
  Indices indices(count);
  EXPECT_TRUE(read_indices(wire, parameter, n, indices));
  return indices;
}

TEST(Rice, ReadsWhatItWrote) {
  std::mt19937 random(1);
  for (const std::size_t n : {1U, 2U, 100U, 5000U, 4000000000U}) {
    for (std::size_t round = 0; round < 40; ++round) {
      Indices indices(random() % 60);
      for (auto& index : indices) {
        // From evenly spread to all close together at one end.
        index = static_cast<std::uint32_t>(n - 1 - random() % n % (1U + (random() >> round % 32)));
      }
      std::sort(indices.begin(), indices.end());
      indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
      const unsigned parameter = rice_parameter(n, indices.size());
      const Bytes wire = written(indices, parameter, most_index_bytes(n, indices.size()));
      EXPECT_EQ(read(wire, parameter, n, indices.size()), indices);
    }
  }
}

TEST(Rice, WritesLongRunsOfOnes) {
  // With parameter 0 a gap is all ones: through every length near the edges of words.
  for (std::uint32_t gap = 0; gap < 300; ++gap) {
    const Indices indices{gap, gap + 1, 2 * gap + 2, 2 * gap + 3};
    const Bytes wire = written(indices, 0, 4 + 2 * gap);
    EXPECT_EQ(wire.size(), (4 + 2 * gap + 7) / 8);
    EXPECT_EQ(read(wire, 0, 2 * gap + 4, 4), indices);
  }
}

TEST(Rice, ReachesItsBoundButNoMore) {
  // One index at the very end: all the ones that there can be.
  for (const std::size_t n : {10U, 1000U, 100000U}) {
    const Indices last{static_cast<std::uint32_t>(n - 1)};
    const unsigned parameter = rice_parameter(n, 1);
    EXPECT_EQ(written(last, parameter, n).size(), most_index_bytes(n, 1));
  }
}

TEST(Rice, BoundGrowsWithTheCount) {
  for (std::size_t count = 1; count <= 2000; ++count) {
    EXPECT_GE(most_index_bytes(2000, count), most_index_bytes(2000, count - 1)) << count;
  }
}

TEST(Rice, RefusesWhatItHasNotWritten) {
  const Indices indices{3, 70, 71, 500, 998};
  const unsigned parameter = rice_parameter(1000, 5);
  const Bytes wire = written(indices, parameter, most_index_bytes(1000, 5));
  Indices into(5);
  EXPECT_TRUE(read_indices(wire, parameter, 1000, into));
  EXPECT_FALSE(read_indices(wire, parameter, 998, into));  // the last is beyond the end
  EXPECT_FALSE(read_indices(wire, 32, 1000, into));
  EXPECT_FALSE(read_indices(std::span(wire).first(wire.size() - 1), parameter, 1000, into));
  Bytes longer = wire;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(read_indices(longer, parameter, 1000, into));
  Bytes all_ones(wire.size(), std::byte{0xff});
  EXPECT_FALSE(read_indices(all_ones, parameter, 1000, into));
  EXPECT_FALSE(read_indices(all_ones, 0, 1000, into));
  Bytes filled = wire;  // a bit behind the last index
  filled.back() |= std::byte{0x80};
  EXPECT_FALSE(read_indices(filled, parameter, 1000, into));
}

}  // namespace
}  // namespace stretto::codec

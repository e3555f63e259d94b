// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/select.hpp"

namespace stretto::kernels {

/// How far a pass over a segment has come.
struct SelectProgress {
  std::size_t first = 0;                     ///< the next element; at a block's beginning
  std::size_t count = 0;                     ///< how many are in the room
  std::uint32_t threshold = kSelectNothing;  ///< of the bits of |x|
  SelectRoom room;
  SelectFacts facts;  ///< left_squares: of those that are not in the room
};

/// A block may select all of its elements, and writes a few places more than it selects.
inline constexpr std::size_t kSelectSlack = 8;
inline constexpr std::size_t kSelectBlockRoom = kCodingBlock + kSelectSlack;

/// The functions of select.hpp as one instruction set has them.
struct SelectTable {
  /// Goes on to the end, or until the room might not do for another block.
  void (*select)(const SelectTask& task, SelectProgress& progress);
  SelectFacts (*measure)(DType dtype, const std::byte* values, std::size_t n);
};

/// One element at a time: the reference.
const SelectTable& scalar_select_table() noexcept;

}  // namespace stretto::kernels

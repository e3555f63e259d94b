// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/low_rank_task.hpp"

#include <algorithm>
#include <cstddef>

namespace stretto::kernels {

/// The functions of low_rank.hpp that go over a matrix, as one instruction set has them.
struct LowRankTable {
  ProjectFacts (*project)(const LowRankShape& shape,
                          const LowRankSource& source,
                          const float* q,
                          std::byte* p,
                          float* left);
  void (*back_project)(const LowRankShape& shape,
                       const LowRankSource& source,
                       const float* p,
                       std::byte* q);
  double (*back_project_and_leave)(const LowRankShape& shape,
                                   float* left,
                                   const float* p,
                                   std::byte* q);
  void (*multiply)(const LowRankShape& shape,
                   const float* p,
                   const std::byte* q,
                   DType dtype,
                   std::byte* result);
};

/// One element at a time: the reference.
const LowRankTable& scalar_low_rank_table() noexcept;

// Sums of squares of what is left go through as many partial sums as a strip has columns, over
// kRowBlock rows of a panel; these parts of a matrix are therefore the same everywhere.

inline constexpr std::size_t kRowBlock = 16;
inline constexpr std::size_t kStrip = 32;

/// Columns that are worked on together: 4 MiB of all rows, which stay in the last cache between two
/// passes, but enough for the hardware to read ahead.
inline std::size_t panel_columns(std::size_t rows) noexcept {
  constexpr std::size_t kPanelElements = std::size_t{1} << 20;
  constexpr std::size_t kLeast = 8 * kStrip;
  const std::size_t columns = kPanelElements / std::max<std::size_t>(rows, 1);
  return std::max(kLeast, columns / kStrip * kStrip);
}

}  // namespace stretto::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/types.hpp"

#include <cstddef>

namespace stretto::kernels {

inline constexpr std::size_t kMostRank = 32;

struct LowRankShape {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t rank = 1;  ///< 1..kMostRank
};

/// The matrix x = values + residual * factor, what is refused of it taken for 0 as
/// coding_arithmetic.hpp says.
struct LowRankSource {
  DType dtype = DType::kFloat32;
  const std::byte* values = nullptr;
  const float* residual = nullptr;  ///< null: none
  float factor = 1;
};

struct ProjectFacts {
  std::size_t refused = 0;   ///< values beyond 2^60, infinite or no number
  double value_squares = 0;  ///< sum of values^2, of those that were not refused
};

}  // namespace stretto::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/coding_table.hpp"
#include "kernels/low_rank_table.hpp"
#include "kernels/select_table.hpp"

#include "stretto/spi/device.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <vector>

namespace stretto::kernels {

/// The kernels as one instruction set has them.
struct Table {
  const char* name;  ///< "scalar", "AVX2", ...
  void (*cast)(
      DType to, std::byte* destination, DType from, const std::byte* source, std::size_t n);
  void (*accumulate)(DType dtype, std::byte* destination, const std::byte* source, std::size_t n);
  void (*weighted_sum)(const spi::Operation& operation);
  std::size_t (*count_non_finite)(DType dtype, const std::byte* source, std::size_t n);
  const CodingTable* coding;
  const LowRankTable* low_rank;
  const SelectTable* select;
};

/// One element at a time: the reference.
const Table& scalar_table() noexcept;

/// The one in use.
const Table& active_table() noexcept;

/// What this processor can run and was compiled, best first; without the scalar one.
std::vector<const Table*> simd_tables();

}  // namespace stretto::kernels

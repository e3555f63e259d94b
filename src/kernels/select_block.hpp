// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/coding_block.hpp"
#include "kernels/select_table.hpp"

#include <algorithm>
#include <array>

// One block of a segment, one element at a time: the whole of the scalar kernels, and what the
// vector kernels do with a block that has values to refuse or is short.

namespace stretto::kernels {

/// What is known of a block.
struct SelectBlock {
  alignas(64) std::array<float, kCodingBlock> x;        ///< where left is unwanted
  std::array<std::uint64_t, kCodingBlock / 64> chosen;  ///< a bit for each selected element
  float value_squares = 0;
  float left_squares = 0;  ///< of those that are not selected
  std::size_t refused = 0;
};

/// Where the x of a block are.
inline float* block_x(const SelectTask& task, std::size_t first, SelectBlock& block) noexcept {
  return task.left == nullptr ? block.x.data() : task.left + first;
}

inline SelectElement load_element(const SelectTask& task, std::size_t i) noexcept {
  const float value = load_scalar(task.dtype, task.values, i);
  const float residual = task.residual == nullptr ? 0.0F : task.residual[i];
  return task.state == nullptr
             ? select_input(value, task.scale, residual, task.factor)
             : select_input(value, task.scale, residual, task.factor, task.state[i], task.rule);
}

inline void form_block_scalar(const SelectTask& task,
                              std::size_t first,
                              std::size_t count,
                              std::uint32_t threshold,
                              SelectBlock& block) noexcept {
  std::array<float, kSumLanes> value_squares{};
  std::array<float, kSumLanes> left_squares{};
  float* const x = block_x(task, first, block);
  block.chosen = {};
  block.refused = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const SelectElement element = load_element(task, first + i);
    x[i] = element.x;
    if (task.state != nullptr) {
      task.next_state[first + i] = element.next;
    }
    block.refused += element.refused ? 1U : 0U;
    const bool chosen = magnitude_bits(element.x) >= threshold;
    block.chosen[i / 64] |= std::uint64_t{chosen} << (i % 64);
    const float left = chosen ? 0.0F : element.x;
    const std::size_t lane = i % kSumLanes;
    value_squares[lane] = value_squares[lane] + element.scaled * element.scaled;
    left_squares[lane] = left_squares[lane] + left * left;
  }
  block.value_squares = sum_of_lanes(value_squares.data());
  block.left_squares = sum_of_lanes(left_squares.data());
}

inline void add_facts(const SelectBlock& block, SelectFacts& facts) noexcept {
  facts.refused += block.refused;
  facts.value_squares += static_cast<double>(block.value_squares);
  facts.left_squares += static_cast<double>(block.left_squares);
}

inline bool has_block_room(const SelectProgress& progress) noexcept {
  return progress.count + kSelectBlockRoom <= progress.room.capacity;
}

}  // namespace stretto::kernels

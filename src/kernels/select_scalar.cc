// SPDX-License-Identifier: Apache-2.0

// One element at a time: what the vector kernels are held against.
#include "kernels/select_block.hpp"

#include <algorithm>

namespace stretto::kernels {
namespace {

void take_chosen(const SelectBlock& block,
                 const float* x,
                 std::size_t first,
                 SelectProgress& progress) noexcept {
  for (std::size_t i = 0; i < kCodingBlock; ++i) {
    if ((block.chosen[i / 64] >> (i % 64) & 1U) != 0) {
      progress.room.index[progress.count] = static_cast<std::uint32_t>(first + i);
      progress.room.value[progress.count] = x[i];
      ++progress.count;
    }
  }
}

void select(const SelectTask& task, SelectProgress& progress) {
  SelectBlock block;
  while (progress.first < task.element_count && has_block_room(progress)) {
    const std::size_t first = progress.first;
    const std::size_t count = std::min(kCodingBlock, task.element_count - first);
    form_block_scalar(task, first, count, progress.threshold, block);
    take_chosen(block, block_x(task, first, block), first, progress);
    add_facts(block, progress.facts);
    progress.first += count;
  }
}

SelectFacts measure_values(DType dtype, const std::byte* values, std::size_t n) {
  SelectTask task;
  task.dtype = dtype;
  task.values = values;
  task.element_count = n;
  SelectFacts facts;
  SelectBlock block;
  for (std::size_t first = 0; first < n; first += kCodingBlock) {
    form_block_scalar(task, first, std::min(kCodingBlock, n - first), kSelectNothing, block);
    add_facts(block, facts);
  }
  return facts;
}

}  // namespace

const SelectTable& scalar_select_table() noexcept {
  static constexpr SelectTable kTable{select, measure_values};
  return kTable;
}

}  // namespace stretto::kernels

// SPDX-License-Identifier: Apache-2.0

// The vector kernels of select.hpp.  Highway compiles this file once per instruction set; each
// function follows its namesake in select_arithmetic.hpp and select_block.hpp.  All of them work on
// whole blocks; a segment's last one, if it is shorter, goes element by element.
#include "kernels/select_block.hpp"

#include <algorithm>
#include <array>
#include <cstring>

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/select_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/simd_formats-inl.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR
const SelectTable* select_table() {
  return &scalar_select_table();
}
#else

using VI32 = hn::Vec<I32>;

HWY_INLINE VI32 magnitude_bits_of(VF32 x) {
  return hn::And(hn::BitCast(I32(), x), hn::Set(I32(), 0x7fffffff));
}

/// A bit for each lane.
HWY_INLINE std::uint64_t bits_of_mask(hn::Mask<I32> mask) {
  if (hn::MaxLanes(I32()) <= 8) {
    std::uint8_t bits = 0;
    hn::StoreMaskBits(I32(), mask, &bits);
    return bits;
  }
  std::array<std::uint8_t, 8> bytes{};
  std::uint64_t bits = 0;
  hn::StoreMaskBits(I32(), mask, bytes.data());
  std::memcpy(&bits, bytes.data(), sizeof bits);
  return bits;
}

/// Calls step(i, two sums) for the vectors of sixteen elements: four, two or one.
template <typename Step>
HWY_INLINE void each_of_sixteen(std::size_t i,
                                const Step& step,
                                VF32& a0,
                                VF32& a1,
                                VF32& a2,
                                VF32& a3,
                                VF32& b0,
                                VF32& b1,
                                VF32& b2,
                                VF32& b3) {
  const std::size_t width = hn::Lanes(F32());
  step(i, a0, b0);
  if (width < 16) {
    step(i + width, a1, b1);
  }
  if (width < 8) {
    step(i + 2 * width, a2, b2);
    step(i + 3 * width, a3, b3);
  }
}

/// As sum_of_lanes, of vectors that hold one lane sum after the other.
HWY_INLINE float sum_of_vectors(VF32 a0, VF32 a1, VF32 a2, VF32 a3) {
  HWY_ALIGN std::array<float, HWY_MAX(kSumLanes, hn::MaxLanes(F32()))> lanes;
  float* const s = lanes.data();
  if (hn::Lanes(F32()) >= 16) {
    hn::Store(a0, F32(), s);
    return sum_of_lanes(s);
  }
  if (hn::Lanes(F32()) == 8) {
    hn::Store(hn::Add(a0, a1), F32(), s);
  } else {
    hn::Store(hn::Add(a0, a2), F32(), s);
    hn::Store(hn::Add(a1, a3), F32(), s + 4);
  }
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/// Where a whole block is read and written.
struct BlockPlace {
  const std::byte* values;
  const float* residual;  ///< zeros if there is none
  float* x;
  const float* state;
  float* next_state;
};

inline BlockPlace place_of(const SelectTask& task, std::size_t first, SelectBlock& block) {
  alignas(64) static constexpr std::array<float, kCodingBlock> kZeros{};
  const bool moves = task.state != nullptr;
  return {task.values + first * size_of(task.dtype),
          task.residual == nullptr ? kZeros.data() : task.residual + first,
          block_x(task, first, block),
          moves ? task.state + first : nullptr,
          moves ? task.next_state + first : nullptr};
}

/// Forms the x of a whole block.  False if there are values to refuse.
template <typename Format, bool kMoves>
HWY_INLINE bool form_block(const SelectTask& task,
                           const BlockPlace& place,
                           std::uint32_t threshold,
                           SelectBlock& block) {
  const F32 d;
  const I32 di;
  const VF32 scale = hn::Set(d, task.scale);
  const VF32 factor = hn::Set(d, task.factor);
  const VF32 momentum = hn::Set(d, task.rule.momentum);
  const VF32 gradient_too = hn::BitCast(d, hn::Set(di, task.rule.nesterov ? -1 : 0));
  const VI32 below = hn::Set(di, static_cast<std::int32_t>(threshold - 1));
  VI32 largest = hn::Zero(di);
  VF32 a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0;
  VF32 b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  for (std::size_t word = 0; word < block.chosen.size(); ++word) {
    std::uint64_t chosen_bits = 0;
    const auto step = [&](std::size_t i, VF32& values, VF32& left) HWY_ATTR {
      const VF32 scaled = hn::Mul(Format::load(place.values, i), scale);
      const VF32 carried = hn::Mul(hn::LoadU(d, place.residual + i), factor);
      VF32 moved = scaled;
      if (kMoves) {
        const VF32 before = hn::LoadU(d, place.state + i);
        const VF32 kept = hn::Mul(momentum, hn::Add(before, hn::And(scaled, gradient_too)));
        moved = hn::Add(kept, scaled);
        const VF32 next = hn::IfThenElse(hn::MaskFromVec(gradient_too), kept, moved);
        hn::StoreU(next, d, place.next_state + i);
        largest = hn::Max(largest, magnitude_bits_of(next));
      }
      const VF32 x = hn::Add(moved, carried);
      hn::StoreU(x, d, place.x + i);
      const VI32 magnitude = magnitude_bits_of(x);
      largest = hn::Max(largest, magnitude);
      const auto chosen = hn::Gt(magnitude, below);
      chosen_bits |= bits_of_mask(chosen) << (i % 64);
      values = hn::Add(values, hn::Mul(scaled, scaled));
      const VF32 rest = hn::IfThenZeroElse(hn::RebindMask(d, chosen), x);
      left = hn::Add(left, hn::Mul(rest, rest));
    };
    for (std::size_t i = word * 64; i < (word + 1) * 64; i += kSumLanes) {
      each_of_sixteen(i, step, a0, a1, a2, a3, b0, b1, b2, b3);
    }
    block.chosen[word] = chosen_bits;
  }
  block.refused = 0;
  block.value_squares = sum_of_vectors(a0, a1, a2, a3);
  block.left_squares = sum_of_vectors(b0, b1, b2, b3);
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest))) <= kCodingLimit;
}

/// Writes down a whole block's selected elements.  Two places of each word are written whether or
/// not there are as many: at one of a hundred a branch for each would often be guessed wrong.
HWY_INLINE void take_chosen_of_whole(const SelectBlock& block,
                                     const float* x,
                                     std::size_t first,
                                     SelectProgress& progress) {
  std::size_t count = progress.count;
  const auto put = [&](std::uint64_t& bits, std::size_t base) HWY_ATTR {
    const std::size_t i = base + (hwy::Num0BitsBelowLS1Bit_Nonzero64(bits | (1ULL << 63U)));
    progress.room.index[count] = static_cast<std::uint32_t>(first + i);
    progress.room.value[count] = x[i];
    count += bits != 0 ? 1U : 0U;
    bits &= bits - 1;
  };
  for (std::size_t word = 0; word < block.chosen.size(); ++word) {
    std::uint64_t bits = block.chosen[word];
    for (int i = 0; i < 2; ++i) {
      put(bits, word * 64);
    }
    while (bits != 0) {
      put(bits, word * 64);
    }
  }
  progress.count = count;
}

template <typename Format, bool kMoves>
void select_as(const SelectTask& task, SelectProgress& progress) {
  SelectBlock block;
  while (progress.first + kCodingBlock <= task.element_count && has_block_room(progress)) {
    const std::size_t first = progress.first;
    const BlockPlace place = place_of(task, first, block);
    if (!form_block<Format, kMoves>(task, place, progress.threshold, block)) {
      form_block_scalar(task, first, kCodingBlock, progress.threshold, block);
    }
    take_chosen_of_whole(block, place.x, first, progress);
    add_facts(block, progress.facts);
    progress.first += kCodingBlock;
  }
  if (progress.first + kCodingBlock > task.element_count) {
    scalar_select_table().select(task, progress);
  }
}

template <typename Format>
void select_moving(const SelectTask& task, SelectProgress& progress) {
  task.state == nullptr ? select_as<Format, false>(task, progress)
                        : select_as<Format, true>(task, progress);
}

void select(const SelectTask& task, SelectProgress& progress) {
  switch (task.dtype) {
    case DType::kFloat32:
      return select_moving<Float>(task, progress);
    case DType::kFloat16:
      return select_moving<Half>(task, progress);
    case DType::kBFloat16:
      return select_moving<Brain>(task, progress);
  }
}

template <typename Format>
SelectFacts measure_as(const SelectTask& task) {
  SelectFacts facts;
  SelectBlock block;
  std::size_t first = 0;
  for (; first + kCodingBlock <= task.element_count; first += kCodingBlock) {
    if (!form_block<Format, false>(task, place_of(task, first, block), kSelectNothing, block)) {
      form_block_scalar(task, first, kCodingBlock, kSelectNothing, block);
    }
    add_facts(block, facts);
  }
  if (first < task.element_count) {
    form_block_scalar(task, first, task.element_count - first, kSelectNothing, block);
    add_facts(block, facts);
  }
  return facts;
}

SelectFacts measure_values(DType dtype, const std::byte* values, std::size_t n) {
  SelectTask task;
  task.dtype = dtype;
  task.values = values;
  task.element_count = n;
  switch (dtype) {
    case DType::kFloat32:
      return measure_as<Float>(task);
    case DType::kFloat16:
      return measure_as<Half>(task);
    case DType::kBFloat16:
      return measure_as<Brain>(task);
  }
  return {};
}

const SelectTable* select_table() {
  static constexpr SelectTable kTable{select, measure_values};
  return &kTable;
}

#endif  // HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace stretto::kernels
HWY_AFTER_NAMESPACE();

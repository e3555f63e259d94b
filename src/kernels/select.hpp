// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/select_arithmetic.hpp"

#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace stretto::kernels {

// What the codecs that send few elements need: forms x = value * scale + residual * factor of every
// element (select_arithmetic.hpp), with a momentum if wanted, leaves it, and finds the largest, in
// one pass over memory.  The bits are the same on every instruction set.
//
// Threading: thread-safe.        Blocking: never.

/// What is read and written of one segment.  No two of the arrays may overlap.
struct SelectTask {
  DType dtype = DType::kFloat32;      ///< of values
  const std::byte* values = nullptr;  ///< [element_count]
  std::size_t element_count = 0;      ///< below 2^32
  float scale = 1;
  const float* residual = nullptr;  ///< what an earlier step has left; null: nothing
  float factor = 1;                 ///< for the residual
  float* left = nullptr;            ///< x, and 0 where it is selected; null: unwanted
  const float* state = nullptr;     ///< the momentum; null: there is none
  float* next_state = nullptr;      ///< and after this step: 0 where x is selected; null with it
  MomentumRule rule;
};

/// Where the selected go, in the order of their indices; working space besides.
struct SelectRoom {
  std::uint32_t* index = nullptr;  ///< [capacity]
  float* value = nullptr;          ///< [capacity]
  std::size_t capacity = 0;        ///< at least select_room
};

struct SelectFacts {
  std::size_t selected = 0;
  std::size_t refused = 0;   ///< values beyond 2^60, infinite or no number
  double value_squares = 0;  ///< sum of (value * scale)^2, of those that were not refused
  double left_squares = 0;   ///< sum of left^2
};

/// What a selection of k out of n elements needs room for: about 2 k.
std::size_t select_room(std::size_t n, std::size_t k) noexcept;

/// Selects the k elements of largest |x| exactly; of equal ones those of smaller index; zeros
/// never.  What is selected depends on x alone; the seed chooses the sample that makes it fast.
///
/// Cost:   one pass, about 1 % of it for the sample, and a few over about 2 k elements; a second
///         pass in about one of a thousand.
/// Source: Deep Gradient Compression (Lin et al. 2018) for the threshold from a sample.  Differs:
///         the threshold aims below the k-th, so that the selection is exact without a retry; while
///         the pass finds too many, it raises it.
SelectFacts select_largest(const SelectTask& task,
                           std::size_t k,
                           std::uint32_t seed,
                           const SelectRoom& room) noexcept;

/// As select_largest, but takes the elements that it is told: values[j] becomes the x at index[j],
/// and nothing is left there.  Indices rise.  Null values of the task are zeros.
///
/// Cost: one pass, if there is something to leave another one over what is in the cache.
SelectFacts take_chosen(const SelectTask& task,
                        std::span<const std::uint32_t> index,
                        float* values) noexcept;

/// Sum of squares of the values, and how many were refused.  Cost: one pass that only reads.
SelectFacts measure(DType dtype, const std::byte* values, std::size_t n) noexcept;

}  // namespace stretto::kernels

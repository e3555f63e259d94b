// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/low_rank_task.hpp"

#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>

namespace stretto::kernels {

// A matrix x of `rows` by `columns`, near the product p q^T of two factors of few columns each.
// Factors lie column after column: p is [rank][rows], q is [rank][columns].  Those that stand in a
// wire are bytes, aligned to anything.  low_rank_scalar.cc says exactly what is computed; the bits
// are the same on every instruction set.
//
// Threading: thread-safe.        Blocking: never.

/// p = x q, and left = x unless it is null.
///
/// Cost: reads values and residual once, writes left once.
ProjectFacts project(const LowRankShape& shape,
                     const LowRankSource& source,
                     const float* q,
                     std::byte* p,
                     float* left) noexcept;

/// q = x^T p.
///
/// Cost: reads values and residual once.
void back_project(const LowRankShape& shape,
                  const LowRankSource& source,
                  const float* p,
                  std::byte* q) noexcept;

/// q = left^T p, then left -= p q^T.  Returns the sum of the squares of what stays.
///
/// Cost: reads and writes left once, in panels that stay in the last cache between the two.
double back_project_and_leave(const LowRankShape& shape,
                              float* left,
                              const float* p,
                              std::byte* q) noexcept;

/// result = p q^T, rounded to its type.
void multiply(const LowRankShape& shape,
              const float* p,
              const std::byte* q,
              DType dtype,
              std::byte* result) noexcept;

/// Makes the columns of p orthonormal, each within what the ones before span (modified
/// Gram-Schmidt, twice).  A column that says nothing new, to rounding, becomes zeros.
///
/// Cost: 4 rows rank^2 multiplications in float64.
void orthonormalize(const LowRankShape& shape, float* p) noexcept;

/// next = q, each column multiplied by the power of two that brings its largest element to [1, 2):
/// what p is made of later does not depend on lengths, and no product of theirs leaves float32's
/// range.
void keep_directions(const LowRankShape& shape, const std::byte* q, float* next) noexcept;

/// q = state, with numbers that are normal (0, 1) to a good approximation in columns of zeros: at
/// the first step all of them.  The numbers are integer arithmetic: the same on every host.
void begin_directions(const LowRankShape& shape,
                      std::uint64_t seed,
                      const float* state,
                      float* q) noexcept;

/// Whether n elements of a factor are what an encoder may write: numbers up to 2^100.
bool is_factor(const std::byte* factor, std::size_t n) noexcept;

/// factor = sum * scale.  May be the same memory.
void scale_factor(const float* sum, std::size_t n, float scale, std::byte* factor) noexcept;

/// sum += weight * factor, in float32: two roundings.
void absorb_factor(const std::byte* factor, std::size_t n, float weight, float* sum) noexcept;

}  // namespace stretto::kernels

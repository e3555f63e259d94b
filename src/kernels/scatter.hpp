// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace stretto::kernels {

// What a wire of few elements becomes.  Indices are below the length of what they point into.
//
// Threading: thread-safe.        Blocking: never.

/// sums[index[j]] += weight * values[j], in float32: two roundings.
void scatter_add(std::span<const std::uint32_t> index,
                 std::span<const float> values,
                 float weight,
                 float* sums) noexcept;

/// result = 0 in n places, but values[j], rounded to its type, at index[j].
void scatter(std::span<const std::uint32_t> index,
             std::span<const float> values,
             DType dtype,
             std::size_t n,
             std::byte* result) noexcept;

/// result[i] = sums[i] * scale, rounded to its type; overwrites sums.
void scale_into(std::span<float> sums, float scale, DType dtype, std::byte* result) noexcept;

}  // namespace stretto::kernels

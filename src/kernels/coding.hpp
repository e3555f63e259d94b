// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/wire_format.hpp"

#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>

namespace stretto::kernels {

// Wires that say something of every element, in one pass over memory: what the gradient is, what an
// earlier step has left, what the wire says, and what is left now.  coding_arithmetic.hpp says
// exactly what is computed; the bits are the same on every instruction set.
//
// Threading: thread-safe.        Blocking: never.

/// Bytes of the wire of n elements; always the same.
std::size_t wire_bytes(WireFormat format, std::size_t n) noexcept;

/// wire = x = values * scale + residual * factor, as near as the format comes; left = x - wire.
///
/// Cost: reads values and residual once, writes wire and left once.
EncodeFacts encode(WireFormat format, const EncodeTask& task) noexcept;

/// Whether a wire's scales and elements are what encode may have written.
///
/// Cost: reads the wire, whose cost to memory a decode that follows does not have again; of one-bit
/// formats the scales.
bool is_wire(WireFormat format, const std::byte* wire, std::size_t n) noexcept;

/// sum[i] += weight * wire[i], in float32: two roundings.
void absorb(
    WireFormat format, const std::byte* wire, std::size_t n, float weight, float* sum) noexcept;

/// result[i] = wire[i] * scale, rounded to its type; beyond float16's range to its largest number.
void decode(WireFormat format,
            const std::byte* wire,
            std::size_t n,
            float scale,
            DType dtype,
            std::byte* result) noexcept;

}  // namespace stretto::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stretto::codec {

// Rising indices below n as a stream of bits: of each the gap to the one before (how many are left
// out between them), Rice-coded: gap / 2^p in unary, as ones before a zero, then p bits of the
// rest, lower bits first.  Gaps add up to at most n - count, so all the ones together are at most
// (n - count) / 2^p, and the length has a bound whatever the indices are:
//   count (1 + p) + (n - count) / 2^p bits.
// p makes that least.  For indices by chance it comes to about log2(n / count) + 1.5 bits each.
//
// Threading: thread-safe.        Source: Rice, 1979; Golomb, 1966.

/// p, for `count` indices below `n`; both sides find the same.
unsigned rice_parameter(std::size_t n, std::size_t count) noexcept;

/// What write_indices may write at most; grows with count.
std::size_t most_index_bytes(std::size_t n, std::size_t count) noexcept;

/// Writes rising indices; returns the bytes that took.  Bits behind the last are 0.
std::size_t write_indices(std::span<const std::uint32_t> indices,
                          unsigned parameter,
                          std::byte* to) noexcept;

/// Reads `indices.size()` rising indices below n that fill `from` to its last byte.  False for what
/// write_indices has not written.
bool read_indices(std::span<const std::byte> from,
                  unsigned parameter,
                  std::size_t n,
                  std::span<std::uint32_t> indices) noexcept;

}  // namespace stretto::codec

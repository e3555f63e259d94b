// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace stretto::codec {

// A wire that says of some elements which they are and what:
//   count u32, Rice parameter u8, indices (codec/rice.hpp), count times float32.
// No value is 0, none beyond 2^60.  A segment of no elements has no bytes.
//
// Threading: thread-safe.

/// What `count` of n elements take at most: 5 + 4 count + most_index_bytes; grows with count.
std::size_t most_sparse_bytes(std::size_t n, std::size_t count) noexcept;

/// The elements of a segment of which a wire speaks.
struct SparseElements {
  std::span<const std::uint32_t> index;  ///< rising
  std::span<const float> value;
};

/// Returns the bytes written, at most most_sparse_bytes.
std::size_t write_sparse(std::size_t n, const SparseElements& elements, std::byte* wire) noexcept;

/// Reads a wire of up to `most` of n elements into this thread's sparse_room; checks all of it.
///
/// Errors: kCorruptWire for what write_sparse has not written.
Result<SparseElements> read_sparse(const std::string& codec,
                                   std::size_t n,
                                   std::size_t most,
                                   std::span<const std::byte> wire);

}  // namespace stretto::codec

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/coding_arithmetic.hpp"
#include "kernels/wire_format.hpp"

#include <cstddef>
#include <cstdint>

// Where the parts of a wire lie, and how many levels it has.

namespace stretto::kernels {

constexpr std::size_t blocks_of(std::size_t n) noexcept {
  return (n + kCodingBlock - 1) / kCodingBlock;
}

constexpr std::size_t scale_bytes(WireFormat format) noexcept {
  switch (format) {
    case WireFormat::kHalf:
      return 1;
    case WireFormat::kInt8:
    case WireFormat::kInt4:
    case WireFormat::kSign:
      return 4;
    case WireFormat::kBrain:
    case WireFormat::kVote:
      return 0;
  }
  return 0;
}

constexpr unsigned element_bits(WireFormat format) noexcept {
  switch (format) {
    case WireFormat::kHalf:
    case WireFormat::kBrain:
      return 16;
    case WireFormat::kInt8:
      return 8;
    case WireFormat::kInt4:
      return 4;
    case WireFormat::kSign:
    case WireFormat::kVote:
      return 1;
  }
  return 0;
}

constexpr std::int32_t levels_of(WireFormat format) noexcept {
  return format == WireFormat::kInt8 ? 127 : 7;
}

/// Where the elements begin.
constexpr std::size_t payload_offset(WireFormat format, std::size_t n) noexcept {
  return blocks_of(n) * scale_bytes(format);
}

constexpr std::size_t length_of_wire(WireFormat format, std::size_t n) noexcept {
  return payload_offset(format, n) + (n * element_bits(format) + 7) / 8;
}

}  // namespace stretto::kernels

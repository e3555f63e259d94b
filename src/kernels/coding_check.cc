// SPDX-License-Identifier: Apache-2.0

// Whether bytes from elsewhere are what an encoder may have written.  Loops over whole payloads
// without a way out in between, so that compilers make vectors of them.
#include "kernels/coding.hpp"
#include "kernels/coding_formats.hpp"

#include <algorithm>
#include <cstring>

namespace stretto::kernels {
namespace {

template <typename T>
T get(const std::byte* from, std::size_t i) noexcept {
  T value{};
  std::memcpy(&value, from + i * sizeof value, sizeof value);
  return value;
}

bool is_scale(WireFormat format, const std::byte* scale) noexcept {
  switch (format) {
    case WireFormat::kHalf:
      return is_half_block_exponent(get<std::uint8_t>(scale, 0));
    case WireFormat::kInt8:
    case WireFormat::kInt4: {
      const auto step = get<float>(scale, 0);
      return step >= 0 && !beyond_coding_limit(step);
    }
    case WireFormat::kSign: {
      const float below = brain_to_float(get<std::uint16_t>(scale, 0));
      const float above = brain_to_float(get<std::uint16_t>(scale, 1));
      return !beyond_coding_limit(below) && !beyond_coding_limit(above) && below <= above;
    }
    case WireFormat::kBrain:
    case WireFormat::kVote:
      return true;
  }
  return false;
}

/// Whether all magnitudes are at most `most`, as bits.
bool are_narrow(const std::byte* payload, std::size_t n, std::uint32_t most) noexcept {
  std::int16_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto magnitude = static_cast<std::int16_t>(get<std::uint16_t>(payload, i) & 0x7fffU);
    largest = std::max(largest, magnitude);
  }
  return static_cast<std::uint32_t>(largest) <= most;
}

/// Levels go from -127 to 127.
bool are_int8(const std::byte* payload, std::size_t n) noexcept {
  std::byte beyond{0};
  for (std::size_t i = 0; i < n; ++i) {
    beyond |= payload[i] == std::byte{0x80} ? std::byte{1} : std::byte{0};
  }
  return beyond == std::byte{0};
}

/// What lies behind the last element in its byte is zero.
bool is_rest(const std::byte* payload, std::size_t bits) noexcept {
  return bits % 8 == 0 || (std::to_integer<unsigned>(payload[bits / 8]) >> (bits % 8)) == 0;
}

/// Codes go from 1 to 15.
bool are_int4(const std::byte* payload, std::size_t n) noexcept {
  std::byte beyond{0};
  for (std::size_t i = 0; i < n / 2; ++i) {
    const bool is_code = (payload[i] & std::byte{0x0f}) != std::byte{0};
    const bool is_other = (payload[i] & std::byte{0xf0}) != std::byte{0};
    beyond |= (is_code & is_other) ? std::byte{0} : std::byte{1};
  }
  const bool last = n % 2 == 0 || (std::to_integer<unsigned>(payload[n / 2]) & 0x0fU) != 0;
  return beyond == std::byte{0} && last && is_rest(payload, 4 * n);
}

}  // namespace

bool is_wire(WireFormat format, const std::byte* wire, std::size_t n) noexcept {
  for (std::size_t block = 0; block < blocks_of(n); ++block) {
    if (!is_scale(format, wire + block * scale_bytes(format))) {
      return false;
    }
  }
  const std::byte* payload = wire + payload_offset(format, n);
  switch (format) {
    case WireFormat::kHalf:
      return are_narrow(payload, n, kHalfLargest);
    case WireFormat::kBrain:
      return are_narrow(payload, n, kCodingLimit >> 16U);
    case WireFormat::kInt8:
      return are_int8(payload, n);
    case WireFormat::kInt4:
      return are_int4(payload, n);
    case WireFormat::kSign:
    case WireFormat::kVote:
      return is_rest(payload, n);
  }
  return false;
}

}  // namespace stretto::kernels

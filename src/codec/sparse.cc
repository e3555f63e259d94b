// SPDX-License-Identifier: Apache-2.0
#include "codec/sparse.hpp"

#include "base/hash.hpp"
#include "kernels/coding_arithmetic.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace stretto::codec {

std::size_t count_of_share(double share, std::size_t n) noexcept {
  // A share as 0.07 is a little more than that in binary; 7 of 100 must not become 8.
  constexpr double kSlack = 1 - 1e-12;
  const double count = std::ceil(share * static_cast<double>(n) * kSlack);
  return std::min(n, std::max<std::size_t>(1, static_cast<std::size_t>(count)));
}

std::uint32_t step_seed(const spi::CodecSegment& segment, const spi::CodecRound& round) noexcept {
  const std::array<std::uint64_t, 2> parts{segment.seed, round.step};
  return static_cast<std::uint32_t>(hash_bytes(std::as_bytes(std::span(parts))));
}

SparseRoom& sparse_room(std::size_t count) {
  thread_local SparseRoom room;
  if (room.index.size() < count) {
    room.index.resize(count);
    room.value.resize(count);
  }
  return room;
}

Status check_length(const std::string& codec,
                    const char* what,
                    std::size_t is,
                    std::size_t wanted) {
  if (is == wanted) {
    return {};
  }
  return {StatusCode::kInvalidArgument,
          "codec " + codec + ": " + what + " of " + std::to_string(is) + " instead of " +
              std::to_string(wanted)};
}

Status check_call(const std::string& codec,
                  const spi::CodecSegment& segment,
                  const spi::CodecRound& round) {
  if (round.round != 0) {
    return {StatusCode::kInvalidArgument, "codec " + codec + " has one round"};
  }
  if (segment.element_count > std::numeric_limits<std::uint32_t>::max()) {
    return {StatusCode::kInvalidArgument,
            "codec " + codec + ": a segment of " + std::to_string(segment.element_count) +
                " elements; cut it below 2^32"};
  }
  return {};
}

Status check_room(const std::string& codec, std::size_t is, std::size_t wanted) {
  return is >= wanted ? Status() : check_length(codec, "room for a wire", is, wanted);
}

Status corrupt_wire(const std::string& codec, const std::string& what) {
  return {StatusCode::kCorruptWire, "a wire of codec " + codec + " " + what};
}

bool are_values(std::span<const float> values) noexcept {
  std::uint32_t largest = 0;
  for (const float value : values) {
    largest = std::max(largest, kernels::bits_of(value) & 0x7fffffffU);
  }
  return largest <= kernels::kCodingLimit;
}

}  // namespace stretto::codec

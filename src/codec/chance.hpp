// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hash.hpp"

#include "stretto/spi/codec.hpp"

#include <array>
#include <cstdint>
#include <span>

namespace stretto::codec {

/// The seed of a segment's chances in one step at one place: no two take theirs together.
///
/// Threading: thread-safe.
inline std::uint32_t chance_seed(const spi::CodecSegment& segment,
                                 std::uint64_t step,
                                 std::uint32_t source) noexcept {
  const std::array<std::uint64_t, 3> parts{segment.seed, step, source};
  return static_cast<std::uint32_t>(hash_bytes(std::as_bytes(std::span(parts))));
}

}  // namespace stretto::codec

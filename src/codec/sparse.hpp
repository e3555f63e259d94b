// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/codec.hpp"
#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

// What the codecs that send few elements have in common.

namespace stretto::codec {

/// How many elements a share of n is, at least one of any.
std::size_t count_of_share(double share, std::size_t n) noexcept;

/// A number for what is done by chance in one step to one segment; the same on all ranks.
std::uint32_t step_seed(const spi::CodecSegment& segment, const spi::CodecRound& round) noexcept;

/// Working space of this thread: made at its first call, kept until it ends.
///
/// Threading: confined(one thread).
struct SparseRoom {
  std::vector<std::uint32_t> index;
  std::vector<float> value;
};
/// With at least `count` places in each; their contents are whatever was there.
SparseRoom& sparse_room(std::size_t count);

/// Errors: kInvalidArgument names the codec and what is of another length.
Status check_length(const std::string& codec, const char* what, std::size_t is, std::size_t wanted);
/// That there is such a round and such a segment, and room for its wire.
Status check_call(const std::string& codec,
                  const spi::CodecSegment& segment,
                  const spi::CodecRound& round);
Status check_room(const std::string& codec, std::size_t is, std::size_t wanted);

/// A wire that no encoder has written.
Status corrupt_wire(const std::string& codec, const std::string& what);

/// Whether all are numbers up to 2^60.
bool are_values(std::span<const float> values) noexcept;

}  // namespace stretto::codec

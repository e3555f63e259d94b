// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/codec.hpp"

#include <string>

namespace stretto::codec {

// What codecs ask of the arguments of a call, and how they say no.
//
// Threading: thread-safe.

/// Errors: kInvalidArgument for a round that the codec does not have.
inline Status check_round(const spi::CodecTraits& traits, const spi::CodecRound& round) {
  if (round.round < traits.rounds) {
    return {};
  }
  return {StatusCode::kInvalidArgument,
          "codec " + traits.name + " has no round " + std::to_string(round.round) + ", only " +
              std::to_string(traits.rounds)};
}

/// Errors: kInvalidArgument names what has another length than it should.
inline Status check_length(const spi::CodecTraits& traits,
                           const char* what,
                           std::size_t is,
                           std::size_t wanted) {
  if (is == wanted) {
    return {};
  }
  return {StatusCode::kInvalidArgument,
          "codec " + traits.name + ": " + what + " of " + std::to_string(is) + " instead of " +
              std::to_string(wanted)};
}

/// Errors: kInvalidArgument for a wire with less room than an encode may need.
inline Status check_room(const spi::CodecTraits& traits, std::size_t is, std::size_t wanted) {
  return is >= wanted ? Status() : check_length(traits, "a wire with room for bytes", is, wanted);
}

/// A wire that no encode has written.
inline Status corrupt_wire(const spi::CodecTraits& traits, const std::string& why) {
  return {StatusCode::kCorruptWire, "a wire of codec " + traits.name + " " + why};
}

/// Errors: kCorruptWire for a wire of another length than all have.
inline Status check_wire_length(const spi::CodecTraits& traits,
                                std::size_t is,
                                std::size_t wanted) {
  return is == wanted ? Status()
                      : corrupt_wire(traits,
                                     "has " + std::to_string(is) + " bytes instead of " +
                                         std::to_string(wanted));
}

}  // namespace stretto::codec

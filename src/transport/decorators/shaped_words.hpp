// SPDX-License-Identifier: Apache-2.0
//
// Everything between two shaped ranks travels as messages of the inner transport, of four kinds
// (Word).  All but fragments are without payload, so they need no buffer:
//
//   kAnnounce, header   sender to receiver   a message wants to go; its own header follows
//   kGrant              receiver to sender   it was accepted
//   kFragment           sender to receiver   leaves when the egress has carried it
//   kCredit             receiver to sender   the ingress has carried so many bytes
//
// Each word carries the time at which it left, so that a late poll costs no capacity.
#pragma once

#include "stretto/spi/transport.hpp"
#include "stretto/types.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace stretto::transport {

enum class Word : std::uint8_t { kAnnounce = 1, kGrant = 2, kFragment = 3, kCredit = 4 };

/// Lateness of polls up to this is made good.
constexpr std::chrono::milliseconds kMadeGood{10};

/// `id` is the sender's number of the message; `value` the bytes of an announcement or a credit,
/// the offset of a fragment.
inline spi::MessageHeader make_word(Word word,
                                    std::uint64_t id,
                                    std::uint64_t value,
                                    TimePoint left) {
  spi::MessageHeader header;
  header.stage = spi::Stage::kUser;
  header.flags = static_cast<std::uint8_t>(word);
  header.step = id;
  header.element_count = value;
  header.plan_hash =
      static_cast<std::uint64_t>(std::chrono::nanoseconds(left.time_since_epoch()).count());
  return header;
}

/// When a word left.  A clock of another host says nothing here: what it says is then held within
/// what can be.
inline TimePoint left_at(const spi::MessageHeader& word, TimePoint now) {
  const TimePoint said{std::chrono::nanoseconds(static_cast<std::int64_t>(word.plan_hash))};
  return std::clamp(said, now - kMadeGood, now);
}

}  // namespace stretto::transport

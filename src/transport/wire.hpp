// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/transport.hpp"
#include "stretto/status.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace stretto::transport {

// Bytes between two ranks that have shaken hands: frames, each a fixed head, an announcement's
// message header or a fragment's payload behind it.  All integers little-endian.
//
//   offset  bytes  head
//        0      1  version (kWireVersion)
//        1      1  type
//        2      2  zero
//        4      4  length: bytes that follow the head
//        8      8  message: numbered by its sender, from 1, in the order of announcement
//       16      8  offset: kData: of the payload's first byte; kGrant: bytes may come up to here;
//                  kCredit: bytes of expected messages that may come beyond those before
//
//   offset  bytes  message header (follows the head of kAnnounce)
//        0      8  step                40      4  epoch          60  1  stage
//        8      8  plan_hash           44      4  bucket         61  1  dtype
//       16      8  samples             48      4  chunk          62  1  codec
//       24      8  element_count       52      4  shard          63  1  flags
//       32      8  payload_bytes       56      4  priority

/// Grows with every change of the bytes below; ranks of different versions refuse each other.
inline constexpr std::uint8_t kWireVersion = 2;
inline constexpr std::size_t kFrameHeadBytes = 24;
inline constexpr std::size_t kMessageHeaderBytes = 64;
/// No message is larger: whoever announces more sends rubbish.
inline constexpr std::uint64_t kMaxPayloadBytes = std::uint64_t{1} << 40;
/// No fragment is larger.
inline constexpr std::uint32_t kMaxFragmentBytes = std::uint32_t{1} << 26;

enum class FrameType : std::uint8_t {
  kAnnounce = 1,  ///< a message header follows
  kGrant = 2,     ///< the receiver lets the bytes of `message` before `offset` come
  kData = 3,      ///< `length` bytes of `message` follow, the first at `offset`
  kBye = 4,       ///< the sender leaves on purpose; nothing follows on this connection
  kCredit = 5,    ///< the receiver lets `offset` more bytes of expected messages come
};

struct FrameHead {
  FrameType type = FrameType::kBye;
  std::uint32_t length = 0;
  std::uint64_t message = 0;
  std::uint64_t offset = 0;

  bool operator==(const FrameHead&) const = default;
};

using FrameHeadBytes = std::array<std::byte, kFrameHeadBytes>;
using MessageHeaderBytes = std::array<std::byte, kMessageHeaderBytes>;

FrameHeadBytes encode(const FrameHead& head) noexcept;
MessageHeaderBytes encode(const spi::MessageHeader& header) noexcept;

/// Reads and checks a head.
///
/// Errors: kCorruptWire for another version, an unknown type, a length that the type does not have.
Result<FrameHead> decode_frame_head(std::span<const std::byte, kFrameHeadBytes> bytes);

/// Reads and checks a message header.
///
/// Errors: kCorruptWire for an unknown stage or dtype, or a payload above kMaxPayloadBytes.
Result<spi::MessageHeader> decode_message_header(
    std::span<const std::byte, kMessageHeaderBytes> bytes);

}  // namespace stretto::transport

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/wire.hpp"

#include "stretto/types.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace stretto::transport {

// The header of an active message.  All integers little-endian; then follow a frame's head and, for
// an announcement, a message header, as wire.hpp has them.  A fragment's bytes are the payload.
//
//   offset  bytes
//        0      8  job
//        8      4  rank of the sender
//       12      4  zero

/// Ids of UCX's handlers.
enum class LetterKind : unsigned {
  kHello = 0,    ///< no frame: the sender's endpoint works
  kControl = 1,  ///< announcement, grant or farewell; no payload
  kData = 2,     ///< a fragment
};

inline constexpr std::size_t kEnvelopeBytes = 16;

/// Who sent it, in which job.
struct Envelope {
  std::uint64_t job = 0;
  Rank from{0};
};

/// A header that is being sent: UCX reads it until the send has completed.
///
/// Threading: thread-compatible.
class LetterHead {
 public:
  void start(const Envelope& envelope) noexcept;
  void append(std::span<const std::byte> bytes) noexcept;
  std::span<const std::byte> bytes() const noexcept { return std::span(bytes_).first(size_); }

 private:
  std::array<std::byte, kEnvelopeBytes + kFrameHeadBytes + kMessageHeaderBytes> bytes_{};
  std::size_t size_ = 0;
};

/// Takes the envelope off the front of a header; nothing if there is none.
std::optional<Envelope> open_envelope(std::span<const std::byte>& header) noexcept;

}  // namespace stretto::transport

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace stretto::spi {

/// What a message is for.  The values are part of the wire format.
enum class Stage : std::uint8_t {
  kContribution = 0,  ///< a shard of one rank's gradient, to the shard's owner
  kResult = 1,        ///< the reduced shard, from its owner to everyone
  kOneHop = 2,        ///< a whole chunk of one rank's gradient, to everyone
  kFooter = 3,        ///< what a rank says of itself at the end of a step
  kUser = 4,          ///< a message of the public send and receive calls
  kPartialSum = 5,    ///< float32 sum of a shard over some ranks, to the next of a ring
};

/// Flag of a message whose receiver has its buffer at hand and accepts as soon as it is announced:
/// the payload may follow the announcement without waiting for an answer.
inline constexpr std::uint8_t kExpected = 0x80;

/// Travels in front of each payload and is checked before a byte of the payload is used.
struct MessageHeader {
  std::uint64_t step = 0;
  std::uint64_t plan_hash = 0;      ///< of the plan agreed at commit
  std::uint64_t samples = 0;        ///< weight of this contribution; 0: it counts for nothing
  std::uint64_t element_count = 0;  ///< elements that the payload stands for
  std::uint64_t payload_bytes = 0;  ///< may be 0: announced and received without a payload
  std::uint32_t epoch = 0;          ///< of membership
  std::uint32_t bucket = 0;
  std::uint32_t chunk = 0;
  std::uint32_t shard = 0;
  std::uint32_t priority = 0;  ///< smaller goes first
  Stage stage = Stage::kContribution;
  DType dtype = DType::kFloat32;
  std::uint8_t codec = 0;  ///< 0: as it is
  std::uint8_t flags = 0;  ///< kExpected, or of the sender's own meaning

  bool operator==(const MessageHeader&) const = default;
};

/// Names one announced message at its receiver, until it has been received.
enum class MessageId : std::uint64_t {};

/// What poll reports.
struct TransportEvent {
  enum class Kind : std::uint8_t {
    kAnnounced,  ///< peer wants to send: `header`, `message`; call accept when there is room
    kReceived,   ///< the accepted message lies in its buffer, whole: `header`, `message`
    kSent,       ///< the payload of `token` may be overwritten
    kPeerLost,   ///< nothing more comes from `peer` or goes to it; reported once
  };
  Kind kind = Kind::kAnnounced;
  Rank peer{0};
  MessageId message{0};
  std::uint64_t token = 0;
  MessageHeader header;
};

/// Says what a transport can do; callers ask, they never assume.
struct TransportTraits {
  std::string name;              ///< "inproc", "tcp", ...
  bool device_memory = false;    ///< payloads and buffers may lie in device memory
  bool crosses_hosts = false;    ///< peers may be on other hosts
  bool refuses_forgery = false;  ///< random bytes from strangers do no harm
};

/// Counters since construction.  Bytes are those of this rank alone.
struct TransportCounters {
  std::uint64_t payload_bytes_sent = 0;
  std::uint64_t payload_bytes_received = 0;
  std::uint64_t wire_bytes_sent = 0;  ///< with headers and grants, as handed to the system
  std::uint64_t messages_sent = 0;
  std::uint64_t refused = 0;  ///< forged, foreign or corrupt messages and connections dropped
};

/// Moves messages between ranks.
///
/// A message is announced (its header travels at once), accepted by the receiver (which names the
/// buffer), and then moves.  Announcing costs no credit; a receiver lets at most a window of bytes
/// per peer move at a time, taken by bytes that move and never by a message that waits; an accepted
/// message needs nothing further to complete.  So nothing can wait in a circle.
///
/// A message with the flag kExpected may move at once, within a window of its own kind; until its
/// receiver has accepted it, whatever its sender posts behind it may wait.  A transport may treat
/// it like any other.
///
/// Threading: confined(progress).       Blocking: never.
/// Ordering:  announcements of one peer arrive in posting order; messages complete in any order.
/// Ownership: a transport that ends gives back all payloads and buffers; no peer reads or writes
///            them any more.  So what they lie in is destroyed after it.
/// Errors:    a lost peer is an event and makes calls that name it fail with kPeerLost; the
///            messages of other peers go on.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  virtual Rank rank() const noexcept = 0;
  virtual std::size_t size() const noexcept = 0;
  virtual const TransportTraits& traits() const noexcept = 0;
  virtual TransportCounters counters() const noexcept = 0;

  /// Says how many messages to each peer, and from it, may be open at once, so that none of them
  /// costs an allocation later.  More stay legal.
  virtual void reserve(std::size_t messages) { static_cast<void>(messages); }

  /// Announces a message and, once the peer has accepted it, sends its payload.
  ///
  /// Ownership: `payload` stays alive and unchanged until kSent with `token` has been polled.
  /// Errors:    kWouldBlock, poll and repeat; kPeerLost; kInvalidArgument for a peer that does not
  ///            exist, this rank itself, or a payload of another size than the header says.
  virtual Status announce(Rank peer,
                          const MessageHeader& header,
                          std::span<const std::byte> payload,
                          std::uint64_t token) = 0;

  /// Gives an announced message its buffer.
  ///
  /// Ownership: `buffer` is the transport's until kReceived with `message` (or the peer's loss) has
  ///            been polled.
  /// Errors:    kInvalidArgument for a message that was not announced or was accepted before, or a
  ///            buffer of another size than the header's payload_bytes.
  virtual Status accept(Rank peer, MessageId message, std::span<std::byte> buffer) = 0;

  /// Moves what can move and reports what happened, at most `events.size()` events a call.
  virtual Result<std::size_t> poll(std::span<TransportEvent> events) = 0;

  /// A descriptor that is readable when poll has something to do; -1 if there is none.
  virtual int descriptor() const noexcept = 0;

  /// When poll wants to be called again though the descriptor is silent (a shaped link, a timer).
  virtual TimePoint next_due() const noexcept { return TimePoint::max(); }

  /// Tells the peers that this rank leaves on purpose, flushes what was accepted, until the
  /// deadline.
  virtual Status close(Deadline deadline) = 0;
};

}  // namespace stretto::spi

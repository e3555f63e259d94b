// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/decorators/shaped_link.hpp"

#include "stretto/spi/transport.hpp"
#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

namespace stretto::transport {

/// The incoming direction of a rank's shaped link, with the messages that come through it.
/// Fragments share it in the order of their arrival.
///
/// Threading: confined(progress).
/// Ownership: buffers are the accepting side's until their message is received or its peer lost.
class ShapedIngress {
 public:
  /// An event and when it may be seen.
  struct Arrival {
    TimePoint when{};
    spi::TransportEvent event;
  };
  /// Where a fragment goes, and when the ingress has carried it.
  struct Landing {
    std::span<std::byte> place;
    TimePoint carried_at{};
  };

  ShapedIngress(const LinkShape& shape, Rank self, std::size_t ranks)
      : delay_(shape.delay), pipe_(shape.bytes_per_second), self_(self), ranks_(ranks) {}

  /// The peer has announced its message `id`.  Nothing if it has one of that number already.
  std::optional<Arrival> announced(Rank peer,
                                   std::uint64_t id,
                                   const spi::MessageHeader& header,
                                   TimePoint left);
  /// Returns the peer's number of the message, to be granted.
  ///
  /// Errors: kInvalidArgument as Transport::accept.
  Result<std::uint64_t> accept(Rank peer, spi::MessageId message, std::span<std::byte> buffer);
  /// A fragment is announced.  Nothing if it is not what should come next.
  std::optional<Landing> fragment(const spi::TransportEvent& announced, TimePoint left);
  /// A fragment is there; says so if its whole message is.
  std::optional<Arrival> fragment_received(const spi::TransportEvent& event);
  void lose(Rank peer);

  /// Whether an accepted message is not here yet.
  bool is_moving() const;

 private:
  struct Message {
    Rank peer{0};
    spi::MessageHeader header;
    bool accepted = false;
    std::span<std::byte> buffer;
    std::size_t missing = 0;
    std::size_t announced = 0;  ///< bytes of fragments seen
    TimePoint carried_at{};     ///< when the ingress has carried what was seen
  };

  std::uint64_t key_of(Rank peer, std::uint64_t id) const { return id * ranks_ + index_of(peer); }

  const std::chrono::nanoseconds delay_;
  Pipe pipe_;
  const Rank self_;
  const std::size_t ranks_;
  std::unordered_map<std::uint64_t, Message> messages_;                        // by key_of
  std::map<std::pair<std::size_t, spi::MessageId>, std::uint64_t> fragments_;  // to key
};

}  // namespace stretto::transport

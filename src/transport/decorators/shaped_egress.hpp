// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/decorators/shaped_link.hpp"

#include "stretto/spi/transport.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <span>
#include <unordered_map>
#include <vector>

namespace stretto::transport {

/// A fragment that the egress has carried.
struct CarriedFragment {
  Rank peer{0};
  std::uint64_t id = 0;  ///< of its message
  std::size_t offset = 0;
  std::span<const std::byte> bytes;
  std::uint32_t priority = 0;
  TimePoint left{};
};

/// The outgoing direction of a rank's shaped link, with the messages that wait for it.
///
/// It carries one fragment at a time: among those that could leave at the earliest moment at which
/// any could, the one of the smallest priority, then of the peer that was served longest ago.
///
/// Threading: confined(progress).
class ShapedEgress {
 public:
  ShapedEgress(const LinkShape& shape, std::size_t ranks);

  /// A message that was announced at `now`; returns its number.
  std::uint64_t add(Rank peer,
                    const spi::MessageHeader& header,
                    std::span<const std::byte> payload,
                    std::uint64_t token,
                    TimePoint now);
  /// The peer has accepted the message.
  void granted(Rank peer, std::uint64_t id, TimePoint when);
  /// The peer's ingress has carried so many bytes of this rank.
  void credited(Rank peer, std::uint64_t bytes, TimePoint when);
  /// The next fragment that has left by `now`; call until there is none.
  std::optional<CarriedFragment> next(TimePoint now);
  /// A fragment's bytes are sent; says so if the whole message is.
  std::optional<spi::TransportEvent> fragment_sent(std::uint64_t id);
  void lose(Rank peer);

  /// When `next` has something; TimePoint::max() if that depends on others.
  TimePoint next_due() const noexcept;
  /// Whether a granted message is not sent yet.
  bool is_moving() const;

 private:
  struct Message {
    Rank peer{0};
    spi::MessageHeader header;
    std::span<const std::byte> payload;
    std::uint64_t token = 0;
    bool granted = false;
    TimePoint granted_at{};
    std::size_t chosen = 0;            ///< bytes that the egress has carried or carries
    bool all_chosen = false;           ///< also for a message without bytes
    std::size_t fragments_moving = 0;  ///< handed to the inner transport, not sent yet
  };
  /// A granted message in its peer's heap: the smallest (priority, order) on top.
  struct Turn {
    std::uint32_t priority;
    std::uint64_t order;
    std::uint64_t id;
    bool operator<(const Turn& other) const {
      return std::pair(other.priority, other.order) < std::pair(priority, order);
    }
  };
  struct Peer {
    std::priority_queue<Turn> turns;
    std::size_t credit = 0;
    TimePoint credit_since{};
    std::uint64_t served = 0;  ///< when the egress last carried something to it
  };
  struct Carried {
    bool busy = false;
    Rank peer{0};
    std::uint64_t id = 0;
    std::size_t offset = 0;
    std::size_t bytes = 0;
    TimePoint finish{};
  };

  std::size_t fragment_of(const Peer& peer) const;
  TimePoint ready_at(const Peer& peer) const;
  Peer* choose_peer(TimePoint& start);
  bool choose_fragment();
  std::optional<CarriedFragment> take_carried();

  const LinkShape shape_;
  Pipe pipe_;
  std::vector<Peer> peers_;
  std::unordered_map<std::uint64_t, Message> messages_;
  Carried carried_;
  std::uint64_t next_id_ = 1;
  std::uint64_t order_ = 0;
};

}  // namespace stretto::transport

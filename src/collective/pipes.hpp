// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exchange/shared/host.hpp"
#include "exchange/shared/mapping.hpp"

#include "stretto/status.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace stretto::collective {

/// The number of a message's handle: its direction, its peer, its place among those of the pair.
struct MessageNumber {
  static constexpr std::uint64_t kMessage = std::uint64_t{1} << 63;  ///< else it is a collective's
  static constexpr std::uint64_t kReceive = std::uint64_t{1} << 62;
  static constexpr unsigned kPeerShift = 40;

  static std::uint64_t make(bool receives, std::size_t peer, std::uint64_t place) noexcept {
    return kMessage | (receives ? kReceive : 0) | (std::uint64_t{peer} << kPeerShift) | place;
  }
  static bool is_message(std::uint64_t number) noexcept { return (number & kMessage) != 0; }
  static bool receives(std::uint64_t number) noexcept { return (number & kReceive) != 0; }
  static std::size_t peer(std::uint64_t number) noexcept {
    return static_cast<std::size_t>((number & ~(kMessage | kReceive)) >> kPeerShift);
  }
  static std::uint64_t place(std::uint64_t number) noexcept {
    return number & ((std::uint64_t{1} << kPeerShift) - 1);
  }
};

/// Messages between ranks that map each other's memory: a ring of pieces per ordered pair.
///
/// A rank's area holds its rings to all others, and how much it has read of theirs to it.  A
/// message is sent when its last piece lies in the ring.
///
/// Threading: thread-compatible.
class Pipes {
 public:
  static std::size_t bytes_for(std::size_t ranks) noexcept { return ranks * sizeof(Pipe); }

  Pipes(std::size_t rank, std::vector<exchange::Mapping> areas);

  std::uint64_t send(const std::byte* data, std::size_t bytes, std::size_t peer);
  std::uint64_t receive(std::byte* data, std::size_t bytes, std::size_t peer);
  bool ended(std::uint64_t number) const noexcept;
  /// Moves what can move; whether anything did.
  Result<bool> advance(exchange::Host& host);

 private:
  static constexpr std::size_t kSlots = 4;
  static constexpr std::size_t kPieceBytes = std::size_t{64} << 10;

  struct alignas(64) Slot {
    std::uint64_t message_bytes = 0;  ///< of the whole message
    std::byte data[kPieceBytes];      // NOLINT(modernize-avoid-c-arrays): lies in shared memory
  };
  struct Pipe {
    alignas(64) std::atomic<std::uint64_t> written{0};  ///< pieces, to the peer
    alignas(64) std::atomic<std::uint64_t> read{0};     ///< pieces, from the peer
    Slot slots[kSlots];                                 // NOLINT(modernize-avoid-c-arrays)
  };
  struct Outgoing {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::size_t moved = 0;
  };
  struct Incoming {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::size_t moved = 0;
  };
  struct Peer {
    std::deque<Outgoing> sends;
    std::deque<Incoming> receives;
    std::uint64_t written = 0;
    std::uint64_t read = 0;
    std::uint64_t sends_issued = 0;
    std::uint64_t sends_ended = 0;
    std::uint64_t receives_issued = 0;
    std::uint64_t receives_ended = 0;
  };

  /// What `from` keeps for `to`.
  Pipe& pipe(std::size_t from, std::size_t to) const noexcept;
  bool write(std::size_t peer);
  Result<bool> read(std::size_t peer);

  std::size_t rank_;
  std::vector<exchange::Mapping> areas_;  ///< by rank
  std::vector<Peer> peers_;
};

}  // namespace stretto::collective

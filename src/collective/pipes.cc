// SPDX-License-Identifier: Apache-2.0
#include "collective/pipes.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace stretto::collective {

Pipes::Pipes(std::size_t rank, std::vector<exchange::Mapping> areas)
    : rank_(rank), areas_(std::move(areas)), peers_(areas_.size()) {}

Pipes::Pipe& Pipes::pipe(std::size_t from, std::size_t to) const noexcept {
  return *std::launder(reinterpret_cast<Pipe*>(areas_[from].data() + to * sizeof(Pipe)));
}

std::uint64_t Pipes::send(const std::byte* data, std::size_t bytes, std::size_t peer) {
  peers_[peer].sends.push_back({data, bytes, 0});
  return MessageNumber::make(false, peer, ++peers_[peer].sends_issued);
}

std::uint64_t Pipes::receive(std::byte* data, std::size_t bytes, std::size_t peer) {
  peers_[peer].receives.push_back({data, bytes, 0});
  return MessageNumber::make(true, peer, ++peers_[peer].receives_issued);
}

bool Pipes::ended(std::uint64_t number) const noexcept {
  const Peer& peer = peers_[MessageNumber::peer(number)];
  return MessageNumber::place(number) <=
         (MessageNumber::receives(number) ? peer.receives_ended : peer.sends_ended);
}

Result<bool> Pipes::advance(exchange::Host& host) {
  bool any = false;
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    bool moved = false;
    while (!peers_[peer].sends.empty() && write(peer)) {
      moved = true;
    }
    while (!peers_[peer].receives.empty()) {
      STRETTO_TRY_ASSIGN(const bool came, read(peer));
      if (!came) {
        break;
      }
      moved = true;
    }
    if (moved) {
      host.wake(peer);
      any = true;
    }
  }
  return any;
}

/// The next piece of the first message, if the ring has room.
bool Pipes::write(std::size_t peer) {
  Peer& known = peers_[peer];
  Pipe& to = pipe(rank_, peer);
  // Pairs with the store in read(): who sees the count may write over what it counts.
  if (known.written >= pipe(peer, rank_).read.load(std::memory_order_acquire) + kSlots) {
    return false;
  }
  Outgoing& message = known.sends.front();
  Slot& slot = to.slots[known.written % kSlots];
  const std::size_t bytes = std::min(kPieceBytes, message.bytes - message.moved);
  slot.message_bytes = message.bytes;
  if (bytes > 0) {
    std::memcpy(slot.data, message.data + message.moved, bytes);
  }
  message.moved += bytes;
  to.written.store(++known.written, std::memory_order_release);
  if (message.moved == message.bytes) {
    known.sends.pop_front();
    ++known.sends_ended;
  }
  return true;
}

/// The next piece for the first receive, if one is there.
Result<bool> Pipes::read(std::size_t peer) {
  Peer& known = peers_[peer];
  const Pipe& from = pipe(peer, rank_);
  // Pairs with the store in write(): who sees the count sees the piece.
  if (known.read == from.written.load(std::memory_order_acquire)) {
    return false;
  }
  Incoming& message = known.receives.front();
  const Slot& slot = from.slots[known.read % kSlots];
  if (slot.message_bytes != message.bytes) {
    return fail(StatusCode::kInvalidArgument,
                "rank " + std::to_string(peer) + " sent " + std::to_string(slot.message_bytes) +
                    " bytes where rank " + std::to_string(rank_) + " receives " +
                    std::to_string(message.bytes));
  }
  const std::size_t bytes = std::min(kPieceBytes, message.bytes - message.moved);
  if (bytes > 0) {
    std::memcpy(message.data + message.moved, slot.data, bytes);
  }
  message.moved += bytes;
  pipe(rank_, peer).read.store(++known.read, std::memory_order_release);
  if (message.moved == message.bytes) {
    known.receives.pop_front();
    ++known.receives_ended;
  }
  return true;
}

}  // namespace stretto::collective

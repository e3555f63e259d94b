// SPDX-License-Identifier: Apache-2.0
#include "transport/decorators/shaped_egress.hpp"

#include <algorithm>
#include <utility>

namespace stretto::transport {

using spi::MessageId;
using spi::TransportEvent;

ShapedEgress::ShapedEgress(const LinkShape& shape, std::size_t ranks)
    : shape_(shape), pipe_(shape.bytes_per_second), peers_(ranks) {
  for (Peer& peer : peers_) {
    peer.credit = shape_.window_bytes;
  }
}

std::uint64_t ShapedEgress::add(Rank peer,
                                const spi::MessageHeader& header,
                                std::span<const std::byte> payload,
                                std::uint64_t token,
                                TimePoint now) {
  const std::uint64_t id = next_id_++;
  messages_[id] = {peer, header, payload, token, false, {}, 0, false, 0};
  if (carried_.busy) {
    carried_.finish += pipe_.time_of(kShapedOverheadBytes);
  } else {
    pipe_.carry(now, kShapedOverheadBytes);
  }
  return id;
}

void ShapedEgress::granted(Rank peer, std::uint64_t id, TimePoint when) {
  const auto found = messages_.find(id);
  if (found == messages_.end() || found->second.peer != peer || found->second.granted) {
    return;
  }
  found->second.granted = true;
  found->second.granted_at = when;
  peers_[index_of(peer)].turns.push({found->second.header.priority, ++order_, id});
}

void ShapedEgress::credited(Rank rank, std::uint64_t bytes, TimePoint when) {
  Peer& peer = peers_[index_of(rank)];
  if (peer.credit < shape_.fragment_bytes) {
    peer.credit_since = when;
  }
  const std::size_t window = shape_.window_bytes;
  peer.credit = std::min(window, peer.credit + std::min<std::size_t>(bytes, window - peer.credit));
}

std::optional<CarriedFragment> ShapedEgress::next(TimePoint now) {
  for (;;) {
    if (carried_.busy) {
      if (carried_.finish > now) {
        return std::nullopt;
      }
      if (auto carried = take_carried()) {
        return carried;
      }
    }
    if (!choose_fragment()) {
      return std::nullopt;
    }
  }
}

std::size_t ShapedEgress::fragment_of(const Peer& peer) const {
  const Message& message = messages_.at(peer.turns.top().id);
  return std::min(shape_.fragment_bytes, message.payload.size() - message.chosen);
}

TimePoint ShapedEgress::ready_at(const Peer& peer) const {
  if (peer.turns.empty() || peer.credit < fragment_of(peer)) {
    return TimePoint::max();
  }
  return std::max(
      {messages_.at(peer.turns.top().id).granted_at, peer.credit_since, pipe_.free_at()});
}

ShapedEgress::Peer* ShapedEgress::choose_peer(TimePoint& start) {
  start = TimePoint::max();
  for (const Peer& peer : peers_) {
    start = std::min(start, ready_at(peer));
  }
  if (start == TimePoint::max()) {
    return nullptr;
  }
  const auto rank_of = [](const Peer& peer) {
    return std::pair(peer.turns.top().priority, peer.served);
  };
  Peer* best = nullptr;
  for (Peer& peer : peers_) {
    if (ready_at(peer) <= start && (best == nullptr || rank_of(peer) < rank_of(*best))) {
      best = &peer;
    }
  }
  return best;
}

bool ShapedEgress::choose_fragment() {
  TimePoint start;
  Peer* const peer = choose_peer(start);
  if (peer == nullptr) {
    return false;
  }
  const std::uint64_t id = peer->turns.top().id;
  Message& message = messages_.at(id);
  const std::size_t bytes = fragment_of(*peer);
  carried_ = {true, message.peer, id, message.chosen, bytes, start + pipe_.time_of(bytes)};
  message.chosen += bytes;
  peer->credit -= bytes;
  peer->served = ++order_;
  if (message.chosen == message.payload.size()) {
    message.all_chosen = true;
    peer->turns.pop();
  }
  return true;
}

std::optional<CarriedFragment> ShapedEgress::take_carried() {
  carried_.busy = false;
  pipe_.carry(carried_.finish, 0);
  const auto found = messages_.find(carried_.id);
  if (found == messages_.end()) {
    return std::nullopt;  // its peer was lost meanwhile
  }
  Message& message = found->second;
  ++message.fragments_moving;
  return CarriedFragment{carried_.peer,
                         carried_.id,
                         carried_.offset,
                         message.payload.subspan(carried_.offset, carried_.bytes),
                         message.header.priority,
                         carried_.finish};
}

std::optional<TransportEvent> ShapedEgress::fragment_sent(std::uint64_t id) {
  const auto found = messages_.find(id);
  if (found == messages_.end()) {
    return std::nullopt;
  }
  Message& message = found->second;
  --message.fragments_moving;
  const bool carrying = carried_.busy && carried_.id == id;
  if (!message.all_chosen || carrying || message.fragments_moving > 0) {
    return std::nullopt;
  }
  TransportEvent sent{
      TransportEvent::Kind::kSent, message.peer, MessageId{0}, message.token, message.header};
  messages_.erase(found);
  return sent;
}

void ShapedEgress::lose(Rank peer) {
  peers_[index_of(peer)].turns = {};
  std::erase_if(messages_, [&](const auto& entry) { return entry.second.peer == peer; });
}

TimePoint ShapedEgress::next_due() const noexcept {
  return carried_.busy ? carried_.finish : TimePoint::max();
}

bool ShapedEgress::is_moving() const {
  return std::ranges::any_of(messages_, [](const auto& entry) { return entry.second.granted; });
}

}  // namespace stretto::transport

// SPDX-License-Identifier: Apache-2.0
#include "transport/decorators/shaped_ingress.hpp"

#include <algorithm>
#include <string>

namespace stretto::transport {
namespace {

std::string name_of(Rank rank) {
  return "rank " + std::to_string(index_of(rank));
}

}  // namespace

using spi::MessageId;
using spi::TransportEvent;

std::optional<ShapedIngress::Arrival> ShapedIngress::announced(Rank peer,
                                                               std::uint64_t id,
                                                               const spi::MessageHeader& header,
                                                               TimePoint left) {
  const std::uint64_t key = key_of(peer, id);
  const auto [entry, is_new] = messages_.try_emplace(key);
  if (!is_new) {
    return std::nullopt;  // its buffer may be in use
  }
  entry->second.peer = peer;
  entry->second.header = header;
  pipe_.carry(left + delay_, kShapedOverheadBytes);
  return Arrival{left + delay_,
                 {TransportEvent::Kind::kAnnounced, peer, MessageId{key}, 0, header}};
}

Result<std::uint64_t> ShapedIngress::accept(Rank peer,
                                            MessageId message,
                                            std::span<std::byte> buffer) {
  const auto key = static_cast<std::uint64_t>(message);
  const auto found = messages_.find(key);
  if (found == messages_.end() || found->second.peer != peer || found->second.accepted) {
    return fail(StatusCode::kInvalidArgument,
                name_of(self_) + " accepted message " + std::to_string(key) + ", which " +
                    name_of(peer) + " did not announce or which was accepted before");
  }
  Message& incoming = found->second;
  if (buffer.size() != incoming.header.payload_bytes) {
    return fail(StatusCode::kInvalidArgument,
                name_of(self_) + " accepted " + std::to_string(incoming.header.payload_bytes) +
                    " bytes of " + name_of(peer) + " into a buffer of " +
                    std::to_string(buffer.size()) + "; they must agree");
  }
  incoming.accepted = true;
  incoming.buffer = buffer;
  incoming.missing = buffer.size();
  return key / ranks_;
}

std::optional<ShapedIngress::Landing> ShapedIngress::fragment(const TransportEvent& announced,
                                                              TimePoint left) {
  const std::uint64_t key = key_of(announced.peer, announced.header.step);
  const std::size_t offset = announced.header.element_count;
  const std::size_t bytes = announced.header.payload_bytes;
  const auto found = messages_.find(key);
  if (found == messages_.end() || !found->second.accepted || offset != found->second.announced ||
      bytes > found->second.buffer.size() - offset) {
    return std::nullopt;
  }
  Message& incoming = found->second;
  incoming.announced += bytes;
  // The first byte arrives while the last one leaves: a message alone crosses at the full rate.
  incoming.carried_at = pipe_.carry(left + delay_ - pipe_.time_of(bytes), bytes);
  fragments_[{index_of(announced.peer), announced.message}] = key;
  return Landing{incoming.buffer.subspan(offset, bytes), incoming.carried_at};
}

std::optional<ShapedIngress::Arrival> ShapedIngress::fragment_received(
    const TransportEvent& event) {
  const auto fragment = fragments_.find({index_of(event.peer), event.message});
  if (fragment == fragments_.end()) {
    return std::nullopt;  // a word without payload
  }
  const std::uint64_t key = fragment->second;
  fragments_.erase(fragment);
  Message& incoming = messages_[key];
  incoming.missing -= event.header.payload_bytes;
  if (incoming.missing > 0) {
    return std::nullopt;
  }
  Arrival whole{incoming.carried_at,
                {TransportEvent::Kind::kReceived, event.peer, MessageId{key}, 0, incoming.header}};
  messages_.erase(key);
  return whole;
}

void ShapedIngress::lose(Rank peer) {
  std::erase_if(messages_, [&](const auto& entry) { return entry.second.peer == peer; });
  std::erase_if(fragments_, [&](const auto& entry) { return entry.first.first == index_of(peer); });
}

bool ShapedIngress::is_moving() const {
  return std::ranges::any_of(messages_, [](const auto& entry) { return entry.second.accepted; });
}

}  // namespace stretto::transport

// SPDX-License-Identifier: Apache-2.0
// The half of TransportCommunicator that sends and receives messages of one pair.
#include "collective/transport_communicator.hpp"

#include <array>
#include <string>

namespace stretto::collective {

std::uint64_t TransportCommunicator::start_send(const std::byte* data,
                                                std::size_t bytes,
                                                std::size_t peer) {
  peers_[peer].sends.emplace_back(data, bytes);
  return MessageNumber::make(false, peer, ++peers_[peer].sends_issued);
}

std::uint64_t TransportCommunicator::start_receive(std::byte* data,
                                                   std::size_t bytes,
                                                   std::size_t peer) {
  peers_[peer].receives.push_back({data, bytes});
  const std::uint64_t place = ++peers_[peer].receives_issued;
  if (Status matched = match(peer); !matched.is_ok()) {
    error_ = std::move(matched);
  }
  return MessageNumber::make(true, peer, place);
}

Result<bool> TransportCommunicator::advance_messages() {
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    while (!peers_[peer].sends.empty()) {
      const auto payload = peers_[peer].sends.front();
      spi::MessageHeader header;
      header.stage = spi::Stage::kUser;
      header.payload_bytes = payload.size();
      const Status status =
          messages_->announce(Rank{static_cast<std::uint32_t>(peer)}, header, payload, peer);
      if (status.code() == StatusCode::kWouldBlock) {
        break;
      }
      STRETTO_TRY(status);
      peers_[peer].sends.pop_front();
    }
  }
  std::array<spi::TransportEvent, 16> events;
  STRETTO_TRY_ASSIGN(const std::size_t count, messages_->poll(events));
  for (std::size_t i = 0; i < count; ++i) {
    STRETTO_TRY(take_message(events[i]));
  }
  return count > 0;
}

Status TransportCommunicator::take_message(const spi::TransportEvent& event) {
  const std::size_t index = index_of(event.peer);
  Peer& peer = peers_[index];
  switch (event.kind) {
    case spi::TransportEvent::Kind::kAnnounced:
      peer.announced.push_back({event.message, event.header.payload_bytes});
      return match(index);
    case spi::TransportEvent::Kind::kReceived:
      ++peer.receives_ended;
      return {};
    case spi::TransportEvent::Kind::kSent:
      ++peer.sends_ended;
      return {};
    case spi::TransportEvent::Kind::kPeerLost:
      if (peer.sends_ended < peer.sends_issued || peer.receives_ended < peer.receives_issued) {
        return {StatusCode::kPeerLost,
                "rank " + std::to_string(index) + " closed its connection for messages"};
      }
      return {};
  }
  return {};
}

/// Gives announced messages to the receives that wait for them, in order.
Status TransportCommunicator::match(std::size_t index) {
  Peer& peer = peers_[index];
  while (!peer.announced.empty() && !peer.receives.empty()) {
    const Peer::Announced message = peer.announced.front();
    const Peer::Receive receive = peer.receives.front();
    if (message.bytes != receive.bytes) {
      error_ = {StatusCode::kInvalidArgument,
                "rank " + std::to_string(index) + " sent " + std::to_string(message.bytes) +
                    " bytes where rank " + std::to_string(rank()) + " receives " +
                    std::to_string(receive.bytes)};
      return error_;
    }
    peer.announced.pop_front();
    peer.receives.pop_front();
    STRETTO_TRY(messages_->accept(
        Rank{static_cast<std::uint32_t>(index)}, message.message, {receive.data, receive.bytes}));
  }
  return {};
}

}  // namespace stretto::collective

// SPDX-License-Identifier: Apache-2.0
// The part of TransportCommunicator that speaks with the transport: messages of users and of
// collectives, and the notices by which ranks learn that they call differently.
#include "collective/transport_communicator.hpp"

#include <array>
#include <string>

namespace stretto::collective {
namespace {

Call call_in(const spi::MessageHeader& header) {
  Call call;
  call.kind = static_cast<Kind>(header.bucket & 0xffU);
  call.reduction = static_cast<Reduction>(header.bucket >> 8U & 0xffU);
  call.dtype = header.dtype;
  call.root = static_cast<std::uint32_t>(header.samples);
  call.count = header.element_count;
  return call;
}

Rank rank_of(std::size_t peer) {
  return Rank{static_cast<std::uint32_t>(peer)};
}

// An event of a sent message brings its token alone: what it is for, and its number.
constexpr unsigned kUseBits = 8;

std::uint64_t token_of(const spi::MessageHeader& header) {
  return header.step << kUseBits | header.flags;
}

}  // namespace

void TransportCommunicator::InTurn::add(std::uint64_t place) {
  if (place != count_ + 1) {
    ahead_.insert(place);
    return;
  }
  ++count_;
  while (!ahead_.empty() && *ahead_.begin() == count_ + 1) {
    ahead_.erase(ahead_.begin());
    ++count_;
  }
}

spi::MessageHeader TransportCommunicator::header_of(Use use,
                                                    std::uint64_t number,
                                                    const Call& call) const noexcept {
  spi::MessageHeader header;
  header.stage = spi::Stage::kUser;
  header.flags = static_cast<std::uint8_t>(use);
  header.step = number;
  header.bucket = static_cast<std::uint32_t>(call.kind) | static_cast<std::uint32_t>(call.reduction)
                                                              << 8U;
  header.dtype = call.dtype;
  header.samples = call.root;
  header.element_count = call.count;
  return header;
}

std::uint64_t TransportCommunicator::start_send(const std::byte* data,
                                                std::size_t bytes,
                                                std::size_t peer) {
  const std::uint64_t place = ++peers_[peer].sends_issued;
  Outgoing message{header_of(Use::kUser, place, {}), {data, bytes}};
  message.header.payload_bytes = bytes;
  peers_[peer].sends.push_back(message);
  return MessageNumber::make(false, peer, place);
}

std::uint64_t TransportCommunicator::start_receive(std::byte* data,
                                                   std::size_t bytes,
                                                   std::size_t peer) {
  peers_[peer].receives.push_back({data, bytes});
  const std::uint64_t place = ++peers_[peer].receives_issued;
  keep(located(match(peer)));
  return MessageNumber::make(true, peer, place);
}

Result<bool> TransportCommunicator::advance_messages() {
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    STRETTO_TRY(announce_waiting(peer));
  }
  return take_events();
}

/// Takes what came, all of it: that a rank calls differently counts more than that it then went.
Result<bool> TransportCommunicator::take_events() {
  std::array<spi::TransportEvent, 64> events;
  STRETTO_TRY_ASSIGN(const std::size_t count, messages_->poll(events));
  Status error;
  for (std::size_t i = 0; i < count; ++i) {
    Status taken = take_event(events[i]);
    if (error.is_ok() || taken.code() == StatusCode::kInvalidArgument) {
      error = std::move(taken);
    }
  }
  STRETTO_TRY(error);
  return count > 0;
}

Status TransportCommunicator::announce_waiting(std::size_t peer) {
  auto& sends = peers_[peer].sends;
  while (!sends.empty()) {
    const Outgoing& next = sends.front();
    const Status status =
        messages_->announce(rank_of(peer), next.header, next.payload, token_of(next.header));
    if (status.code() == StatusCode::kWouldBlock) {
      return {};
    }
    STRETTO_TRY(status);
    sends.pop_front();
  }
  return {};
}

Status TransportCommunicator::take_event(const spi::TransportEvent& event) {
  const std::size_t index = index_of(event.peer);
  Peer& peer = peers_[index];
  switch (event.kind) {
    case spi::TransportEvent::Kind::kAnnounced:
      return take_announced(index, {event.message, event.header});
    case spi::TransportEvent::Kind::kReceived:
      if (event.header.flags == static_cast<std::uint8_t>(Use::kUser)) {
        peer.receives_ended.add(event.header.step);
      } else if (event.header.flags == static_cast<std::uint8_t>(Use::kData)) {
        --peer.to_come;
        arrived(event.header);
      }
      return {};
    case spi::TransportEvent::Kind::kSent:
      switch (static_cast<Use>(event.token & ((1U << kUseBits) - 1))) {
        case Use::kUser:
          peer.sends_ended.add(event.token >> kUseBits);
          break;
        case Use::kData:
          --peer.to_go;
          break;
        case Use::kNotice:
        case Use::kReport:
          break;
      }
      return {};
    case spi::TransportEvent::Kind::kPeerLost:
      return take_lost(index);
  }
  return {};
}

Status TransportCommunicator::take_announced(std::size_t peer, const Announced& message) {
  switch (static_cast<Use>(message.header.flags)) {
    case Use::kUser:
      peers_[peer].announced.push_back(message);
      return match(peer);
    case Use::kData:
      return take_data(peer, message);
    case Use::kNotice:
    case Use::kReport:
      // The header is the message.  Who told it may be gone already.
      if (message.header.payload_bytes == 0) {
        static_cast<void>(messages_->accept(rank_of(peer), message.message, {}));
      }
      return take_notice(peer, message.header);
  }
  return {StatusCode::kCorruptWire,
          "rank " + std::to_string(peer) + " sent a message of another version of Stretto"};
}

/// Accepts a message of the collective under way; others wait until theirs is.
Status TransportCommunicator::take_data(std::size_t peer, const Announced& message) {
  if (!begun_ || message.header.step != number() || call_in(message.header) != call()) {
    peers_[peer].early.push_back(message);
    return {};
  }
  const auto place = place_of(peer, message.header);
  if (!place) {
    return {StatusCode::kCorruptWire,
            "rank " + std::to_string(peer) + " sent a message that does not belong to " +
                to_string(call()) + " (piece " + std::to_string(message.header.chunk) + ", " +
                std::to_string(message.header.payload_bytes) + " bytes)"};
  }
  return messages_->accept(rank_of(peer), message.message, *place);
}

/// Looks again at what came before its collective was begun.
Status TransportCommunicator::take_early(std::size_t peer) {
  auto waiting = std::exchange(peers_[peer].early, {});
  for (const Announced& message : waiting) {
    STRETTO_TRY(take_data(peer, message));
  }
  return {};
}

Status TransportCommunicator::take_lost(std::size_t index) {
  Peer& peer = peers_[index];
  peer.lost = true;
  if (peer.sends_ended.count() < peer.sends_issued ||
      peer.receives_ended.count() < peer.receives_issued) {
    return {StatusCode::kPeerLost,
            "rank " + std::to_string(index) + " closed its connection for messages"};
  }
  if (peer.to_go > 0 || peer.to_come > 0) {
    return {StatusCode::kPeerLost,
            "rank " + std::to_string(index) + " closed its connection during collective " +
                std::to_string(number()) + ", " + to_string(call())};
  }
  return {};
}

void TransportCommunicator::send_notice(std::size_t peer,
                                        Use use,
                                        std::size_t about,
                                        const Call& call) {
  Outgoing message{header_of(use, number(), call), {}};
  message.header.shard = static_cast<std::uint32_t>(about);
  peers_[peer].sends.push_back(message);
}

Status TransportCommunicator::take_notice(std::size_t from, const spi::MessageHeader& header) {
  const bool is_report = header.flags == static_cast<std::uint8_t>(Use::kReport);
  const std::size_t about = is_report ? header.shard : from;
  if (about == rank() || about >= size()) {
    return {};
  }
  if (header.step > issued_) {
    notices_.emplace(header.step, std::pair(about, call_in(header)));
    return {};
  }
  return check_notice(header.step, about, call_in(header));
}

/// Compares what another rank calls with what this one does.
Status TransportCommunicator::check_notice(std::uint64_t number,
                                           std::size_t peer,
                                           const Call& theirs) {
  if (number <= ended_ && number + recent_.size() <= issued_) {
    return {};  // too long ago to remember
  }
  const Call mine = number > ended_ ? jobs_[static_cast<std::size_t>(number - ended_ - 1)].call
                                    : recent_[number % recent_.size()];
  if (mine == theirs) {
    return {};
  }
  // Also if it was told: whoever fails goes, and its last words are to come before its end.
  tell_all(number, mine, peer, theirs);
  return mismatch(number, mine, peer, theirs);
}

/// Tells every rank at once what two ranks call; it differs from the call of at least one of both.
void TransportCommunicator::tell_all(std::uint64_t number,
                                     const Call& own,
                                     std::size_t peer,
                                     const Call& theirs) {
  for (std::size_t steps = 1; steps < size(); ++steps) {
    for (const auto& [about, call] : {std::pair(rank(), own), std::pair(peer, theirs)}) {
      spi::MessageHeader header = header_of(Use::kReport, number, call);
      header.shard = static_cast<std::uint32_t>(about);
      // Whoever cannot be told now hears of it when this rank's connection ends.
      static_cast<void>(messages_->announce(rank_of(after(steps)), header, {}, token_of(header)));
    }
  }
  std::array<spi::TransportEvent, 1> none;
  static_cast<void>(messages_->poll(none));
}

/// Gives announced messages to the receives that wait for them, in order.
Status TransportCommunicator::match(std::size_t index) {
  Peer& peer = peers_[index];
  while (!peer.announced.empty() && !peer.receives.empty()) {
    const Announced message = peer.announced.front();
    const Receive receive = peer.receives.front();
    if (message.header.payload_bytes != receive.bytes) {
      return {StatusCode::kInvalidArgument,
              "rank " + std::to_string(index) + " sent " +
                  std::to_string(message.header.payload_bytes) + " bytes where rank " +
                  std::to_string(rank()) + " receives " + std::to_string(receive.bytes)};
    }
    if (message.header.step != ++peer.receives_matched) {
      return {StatusCode::kCorruptWire,
              "rank " + std::to_string(index) + " sent message " +
                  std::to_string(message.header.step) + " where " +
                  std::to_string(peer.receives_matched) + " is the next"};
    }
    peer.announced.pop_front();
    peer.receives.pop_front();
    STRETTO_TRY(messages_->accept(rank_of(index), message.message, {receive.data, receive.bytes}));
  }
  return {};
}

}  // namespace stretto::collective

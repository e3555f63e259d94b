// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/transport.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stretto::spi::conformance {

inline Rank rank_at(std::size_t index) {
  return Rank{static_cast<std::uint32_t>(index)};
}

/// Fills memory with the payload of message `serial` of one pair: any two messages differ.
inline void fill_pattern(Rank from, Rank to, std::uint64_t serial, std::span<std::byte> memory) {
  std::uint64_t state = 0x9e3779b97f4a7c15U * (serial + 1) + 0x632be59bd9b4e019U * index_of(from) +
                        0xd1342543de82ef95U * index_of(to);
  while (!memory.empty()) {
    state = (state ^ (state >> 31)) * 0xbf58476d1ce4e5b9U + 0x94d049bb133111ebU;
    const std::size_t count = std::min(memory.size(), sizeof state);
    std::memcpy(memory.data(), &state, count);
    memory = memory.subspan(count);
  }
}

/// The header of message `serial` of one pair, every field set.
inline MessageHeader pattern_header(
    Rank from, Rank to, std::uint64_t serial, std::size_t bytes, std::uint32_t priority) {
  MessageHeader header;
  header.step = serial;
  header.plan_hash = 0x1122334455667788U * (serial + 1) + index_of(from);
  header.samples = serial % 3;
  header.element_count = bytes / 2;
  header.payload_bytes = bytes;
  header.epoch = 0xfedcba98U;
  header.bucket = static_cast<std::uint32_t>(serial * 7);
  header.chunk = static_cast<std::uint32_t>(index_of(from) * 100 + index_of(to));
  header.shard = 0xffffffffU;
  header.priority = priority;
  header.stage = static_cast<Stage>(serial % 5);
  header.dtype = static_cast<DType>(serial % 3);
  header.codec = 0;
  header.flags = static_cast<std::uint8_t>(serial % 2);
  return header;
}

/// One rank of a test: owns the transport, keeps payloads and buffers alive, checks what arrives,
/// and overwrites each payload as soon as it may.
///
/// Threading: confined(one thread at a time).
class Endpoint {
 public:
  struct Announced {
    Rank peer{0};
    MessageId message{0};
    MessageHeader header;
  };

  Endpoint(std::unique_ptr<Transport> transport, std::uint64_t seed)
      : transport_(std::move(transport)), random_(seed) {}

  Transport& transport() { return *transport_; }
  bool alive() const { return transport_ != nullptr; }
  /// The rank dies: its transport goes without a word; its memory stays until the test ends.
  void die() { transport_.reset(); }

  /// Sends `bytes` bytes of pattern from an address of odd alignment; queues while it would block.
  std::uint64_t send(Rank peer,
                     std::size_t bytes,
                     std::uint32_t priority = 0,
                     std::uint8_t flags = 0) {
    const std::uint64_t serial = next_serial_[index_of(peer)]++;
    const std::uint64_t token = next_token_++;
    Outgoing& outgoing = outgoing_[token];
    outgoing.memory.resize(bytes + 3);
    outgoing.offset = serial % 4;
    outgoing.peer = peer;
    outgoing.header = pattern_header(transport_->rank(), peer, serial, bytes, priority);
    outgoing.header.flags |= flags;
    fill_pattern(transport_->rank(), peer, serial, outgoing.span());
    backlog_.push_back(token);
    post();
    return token;
  }

  /// Accepts the message announced at `position` of announced().
  void accept(std::size_t position) {
    const Announced message = announced_[position];
    announced_.erase(announced_.begin() + static_cast<std::ptrdiff_t>(position));
    Buffer& buffer =
        buffers_[{index_of(message.peer), static_cast<std::uint64_t>(message.message)}];
    buffer.memory.assign(message.header.payload_bytes + 3, kUntouched);
    buffer.offset = message.header.step % 3;
    buffer.header = message.header;
    const Status status = transport_->accept(message.peer, message.message, buffer.span());
    if (status.code() != StatusCode::kPeerLost) {
      note(status, "accept");
    }
  }
  void accept_all() {
    while (!announced_.empty()) {
      accept(0);
    }
  }
  void accept_any() {
    if (!announced_.empty()) {
      accept(random_() % announced_.size());
    }
  }

  /// Polls once for at most `most` events; says how many there were.
  std::size_t turn(std::size_t most = 16) {
    post();
    std::array<TransportEvent, 16> events;
    const auto count = transport_->poll(std::span(events).first(std::min(most, events.size())));
    if (!count.has_value()) {
      note(count.error(), "poll");
      return 0;
    }
    if (*count > most) {
      complain("poll reported more events than it was given room for");
    }
    for (std::size_t i = 0; i < *count; ++i) {
      handle(events[i]);
    }
    return *count;
  }

  const std::vector<Announced>& announced() const { return announced_; }
  /// Serial numbers of what was received, in the order of completion.
  const std::vector<std::uint64_t>& received_from(Rank peer) { return received_[index_of(peer)]; }
  std::size_t received() const { return n_received_; }
  std::size_t sent() const { return n_sent_; }
  std::size_t unsent() const { return outgoing_.size(); }
  std::size_t accepted() const { return buffers_.size(); }
  std::size_t losses_of(Rank peer) { return losses_[index_of(peer)]; }
  std::uint64_t bytes_received() const { return bytes_received_; }
  std::uint64_t bytes_sent() const { return bytes_sent_; }
  /// What went wrong; empty if nothing did.
  const std::string& complaint() const { return complaint_; }

 private:
  static constexpr std::byte kUntouched{0xee};

  struct Memory {
    std::vector<std::byte> memory;
    std::size_t offset = 0;
    MessageHeader header;
    std::span<std::byte> span() { return std::span(memory).subspan(offset, header.payload_bytes); }
  };
  using Buffer = Memory;
  struct Outgoing : Memory {
    Rank peer{0};
  };

  void complain(std::string text) {
    if (complaint_.empty()) {
      complaint_ = "rank " + (alive() ? std::to_string(index_of(transport_->rank())) : "?") + ": " +
                   std::move(text);
    }
  }
  void note(const Status& status, const char* what) {
    if (!status.is_ok()) {
      complain(std::string(what) + ": " + status.to_string());
    }
  }

  void post() {
    while (!backlog_.empty()) {
      const auto found = outgoing_.find(backlog_.front());
      if (found != outgoing_.end()) {
        Outgoing& outgoing = found->second;
        const Status status =
            transport_->announce(outgoing.peer, outgoing.header, outgoing.span(), found->first);
        if (status.code() == StatusCode::kWouldBlock) {
          return;
        }
        if (status.code() == StatusCode::kPeerLost) {
          outgoing_.erase(found);
        } else {
          note(status, "announce");
        }
      }
      backlog_.pop_front();
    }
  }

  void handle(const TransportEvent& event) {
    const std::size_t peer = index_of(event.peer);
    if (losses_[peer] > 0 && event.kind != TransportEvent::Kind::kPeerLost) {
      complain("an event of rank " + std::to_string(peer) + " came after its loss");
    }
    switch (event.kind) {
      case TransportEvent::Kind::kAnnounced:
        handle_announced(event);
        break;
      case TransportEvent::Kind::kReceived:
        handle_received(event);
        break;
      case TransportEvent::Kind::kSent:
        handle_sent(event);
        break;
      case TransportEvent::Kind::kPeerLost:
        handle_lost(event.peer);
        break;
    }
  }

  void handle_announced(const TransportEvent& event) {
    const std::uint64_t expected = n_announced_[index_of(event.peer)]++;
    if (event.header.step != expected) {
      complain("message " + std::to_string(event.header.step) + " of rank " +
               std::to_string(index_of(event.peer)) + " was announced where " +
               std::to_string(expected) + " was posted");
    }
    MessageHeader posted = pattern_header(event.peer,
                                          transport_->rank(),
                                          event.header.step,
                                          event.header.payload_bytes,
                                          event.header.priority);
    const bool at_once = (event.header.flags & kExpected) != 0;
    posted.flags |= at_once ? kExpected : std::uint8_t{0};
    if (event.header != posted) {
      complain("an announced header is not the one that was posted");
    }
    announced_.push_back({event.peer, event.message, event.header});
    if (at_once) {
      accept(announced_.size() - 1);
    }
  }

  void handle_received(const TransportEvent& event) {
    const auto found =
        buffers_.find({index_of(event.peer), static_cast<std::uint64_t>(event.message)});
    if (found == buffers_.end()) {
      return complain("kReceived for a message that was not accepted");
    }
    Buffer& buffer = found->second;
    if (event.header != buffer.header) {
      complain("the header of kReceived differs from the announced one");
    }
    const std::span<std::byte> bytes = buffer.span();
    expected_.resize(bytes.size());
    fill_pattern(event.peer, transport_->rank(), event.header.step, expected_);
    // memcmp first: byte loops are what takes the time under the sanitizers.
    if (!bytes.empty() && std::memcmp(bytes.data(), expected_.data(), bytes.size()) != 0) {
      const auto wrong = std::ranges::mismatch(bytes, expected_).in1;
      complain("byte " + std::to_string(wrong - bytes.begin()) + " of message " +
               std::to_string(event.header.step) + " (" + std::to_string(bytes.size()) +
               " bytes) of rank " + std::to_string(index_of(event.peer)) + " is wrong");
    }
    const auto untouched = [](std::byte b) { return b == kUntouched; };
    const std::span<const std::byte> around(buffer.memory);
    if (!std::ranges::all_of(around.first(buffer.offset), untouched) ||
        !std::ranges::all_of(around.subspan(buffer.offset + bytes.size()), untouched)) {
      complain("a byte outside the buffer was written");
    }
    ++n_received_;
    bytes_received_ += bytes.size();
    received_[index_of(event.peer)].push_back(event.header.step);
    buffers_.erase(found);
  }

  void handle_sent(const TransportEvent& event) {
    const auto found = outgoing_.find(event.token);
    if (found == outgoing_.end() || found->second.peer != event.peer) {
      return complain("kSent for a token that was not announced to that peer, or twice");
    }
    ++n_sent_;
    bytes_sent_ += found->second.header.payload_bytes;
    std::memset(found->second.memory.data(),
                0xdd,
                found->second.memory.size());  // the receiver must not see it
    outgoing_.erase(found);
  }

  // The contract gives payloads and buffers back with the event.
  void handle_lost(Rank peer) {
    ++losses_[index_of(peer)];
    std::erase_if(outgoing_, [&](const auto& entry) { return entry.second.peer == peer; });
    std::erase_if(buffers_, [&](const auto& entry) { return entry.first.first == index_of(peer); });
    std::erase_if(announced_, [&](const Announced& message) { return message.peer == peer; });
  }

  // Before the transport, so that they outlive it.
  std::map<std::uint64_t, Outgoing> outgoing_;
  std::map<std::pair<std::size_t, std::uint64_t>, Buffer> buffers_;  // by peer and message
  std::unique_ptr<Transport> transport_;
  std::mt19937_64 random_;
  std::deque<std::uint64_t> backlog_;
  std::vector<Announced> announced_;
  std::map<std::size_t, std::vector<std::uint64_t>> received_;
  std::map<std::size_t, std::uint64_t> next_serial_;
  std::map<std::size_t, std::uint64_t> n_announced_;
  std::map<std::size_t, std::size_t> losses_;
  std::uint64_t next_token_ = 1000;
  std::size_t n_received_ = 0;
  std::size_t n_sent_ = 0;
  std::uint64_t bytes_received_ = 0;
  std::uint64_t bytes_sent_ = 0;
  std::vector<std::byte> expected_;  // kept for its memory
  std::string complaint_;
};

}  // namespace stretto::spi::conformance

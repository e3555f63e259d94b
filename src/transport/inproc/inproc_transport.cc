// SPDX-License-Identifier: Apache-2.0
#include "transport/inproc/inproc_transport.hpp"

#include "transport/event_queue.hpp"
#include "transport/inproc/hub.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <poll.h>

namespace stretto::transport {
namespace {

using spi::MessageHeader;
using spi::MessageId;
using spi::TransportEvent;

std::string name_of(Rank rank) {
  return "rank " + std::to_string(index_of(rank));
}

/// One rank's end.  See make_inproc_transports.
///
/// Threading: confined(progress).
class InprocTransport final : public spi::Transport {
 public:
  // The hub is shared by the ranks: the last one to go takes it along.
  InprocTransport(Rank rank, std::shared_ptr<Hub> hub, const InprocOptions& options)
      : rank_(rank), hub_(std::move(hub)), options_(options), peers_(hub_->size()) {
    traits_.name = "inproc";
    traits_.refuses_forgery = true;  // nobody outside the process reaches it
  }
  ~InprocTransport() override { leave(); }

  Rank rank() const noexcept override { return rank_; }
  std::size_t size() const noexcept override { return hub_->size(); }
  const spi::TransportTraits& traits() const noexcept override { return traits_; }
  spi::TransportCounters counters() const noexcept override { return counters_; }
  int descriptor() const noexcept override { return hub_->mailbox(rank_).descriptor(); }

  Status announce(Rank peer,
                  const MessageHeader& header,
                  std::span<const std::byte> payload,
                  std::uint64_t token) override;
  Status accept(Rank peer, MessageId message, std::span<std::byte> buffer) override;
  Result<std::size_t> poll(std::span<TransportEvent> events) override;
  Status close(Deadline deadline) override;

 private:
  /// A message that was announced to this rank and has not been received.
  struct Incoming {
    Letter letter;
    std::uint32_t generation = 0;  ///< of the slot; a stale MessageId has another
    bool announced = false;        ///< false: the slot is free
    bool accepted = false;
    std::span<std::byte> buffer;
    std::size_t moved = 0;
  };
  /// An accepted message in its peer's heap: the smallest (priority, order) is on top.
  struct Turn {
    std::uint32_t priority;
    std::uint64_t order;
    std::size_t slot;
    bool operator<(const Turn& other) const {
      return std::pair(other.priority, other.order) < std::pair(priority, order);
    }
  };
  struct Peer {
    bool lost = false;
    std::size_t announced = 0;  ///< to this peer, not yet sent
    std::vector<Turn> turns;    ///< from this peer: a heap
  };

  Status check_peer(Rank peer) const;
  void read_letters();
  void on_announced(const Letter& letter);
  void on_lost(Rank peer);
  /// Copies up to a window of each peer, a fragment of each in turn; says whether more is left.
  bool move_fragments();
  std::size_t move_fragment(Rank from, Peer& peer);
  void finish(Rank from, Peer& peer, Incoming& message);
  void release(std::size_t slot);
  bool wait_for_receivers(Deadline deadline);
  void leave();

  MessageId id_of(std::size_t slot) const {
    return MessageId{(std::uint64_t{slots_[slot].generation} << 32) | slot};
  }

  const Rank rank_;
  const std::shared_ptr<Hub> hub_;
  const InprocOptions options_;
  spi::TransportTraits traits_;
  spi::TransportCounters counters_;
  std::vector<Peer> peers_;
  std::vector<Incoming> slots_;
  std::vector<std::size_t> free_slots_;
  std::vector<Letter> letters_;  // kept for its memory
  EventQueue events_;
  std::uint64_t accepted_ = 0;     // orders messages of one priority
  std::size_t first_in_turn_ = 0;  // whose fragment moves first in the next poll
  bool closed_ = false;
  bool left_ = false;
};

Status InprocTransport::check_peer(Rank peer) const {
  if (index_of(peer) >= size() || peer == rank_) {
    return Status(StatusCode::kInvalidArgument,
                  name_of(rank_) + " named " + name_of(peer) + " as a peer; peers are the other " +
                      std::to_string(size() - 1) + " ranks of the group");
  }
  if (closed_) {
    return Status(StatusCode::kInvalidArgument,
                  name_of(rank_) + " has closed its transport; make a new one to send again");
  }
  if (peers_[index_of(peer)].lost) {
    return Status(
        StatusCode::kPeerLost,
        name_of(peer) + " is gone; end, or form the group of " + name_of(rank_) + " anew");
  }
  return Status::ok();
}

Status InprocTransport::announce(Rank peer,
                                 const MessageHeader& header,
                                 std::span<const std::byte> payload,
                                 std::uint64_t token) {
  STRETTO_TRY(check_peer(peer));
  if (payload.size() != header.payload_bytes) {
    return Status(StatusCode::kInvalidArgument,
                  name_of(rank_) + " announced " + std::to_string(header.payload_bytes) +
                      " bytes to " + name_of(peer) + " with a payload of " +
                      std::to_string(payload.size()) + "; they must agree");
  }
  Peer& state = peers_[index_of(peer)];
  if (state.announced >= options_.max_announced) {
    return Status(StatusCode::kWouldBlock, "too many announced messages wait; poll and repeat");
  }
  ++state.announced;
  hub_->mailbox(peer).put({Letter::Kind::kAnnounced, rank_, token, header, payload.data()});
  return Status::ok();
}

Status InprocTransport::accept(Rank peer, MessageId message, std::span<std::byte> buffer) {
  STRETTO_TRY(check_peer(peer));
  const auto id = static_cast<std::uint64_t>(message);
  const std::size_t slot = id & 0xffffffffU;
  if (slot >= slots_.size() || !slots_[slot].announced || slots_[slot].accepted ||
      id_of(slot) != message || slots_[slot].letter.from != peer) {
    return Status(StatusCode::kInvalidArgument,
                  name_of(rank_) + " accepted message " + std::to_string(id) + ", which " +
                      name_of(peer) + " did not announce or which was accepted before");
  }
  Incoming& incoming = slots_[slot];
  const MessageHeader& header = incoming.letter.header;
  if (buffer.size() != header.payload_bytes) {
    return Status(StatusCode::kInvalidArgument,
                  name_of(rank_) + " accepted " + std::to_string(header.payload_bytes) +
                      " bytes of " + name_of(peer) + " into a buffer of " +
                      std::to_string(buffer.size()) + "; they must agree");
  }
  {
    Lane& lane = hub_->lane(peer, rank_);
    MutexLock lock(lane.mutex);
    if (!lane.accepting) {
      return Status(StatusCode::kPeerLost, name_of(peer) + " has left and took its messages back");
    }
    ++lane.accepted;
  }
  incoming.accepted = true;
  incoming.buffer = buffer;
  auto& turns = peers_[index_of(peer)].turns;
  turns.push_back({header.priority, accepted_++, slot});
  std::push_heap(turns.begin(), turns.end());
  hub_->mailbox(rank_).settle(true);  // the next poll has something to copy
  return Status::ok();
}

Result<std::size_t> InprocTransport::poll(std::span<TransportEvent> events) {
  if (left_) {
    return events_.take(events);
  }
  read_letters();
  const bool more = move_fragments();
  const std::size_t count = events_.take(events);
  hub_->mailbox(rank_).settle(more || !events_.empty());
  return count;
}

void InprocTransport::read_letters() {
  letters_.clear();
  hub_->mailbox(rank_).take(letters_);
  for (const Letter& letter : letters_) {
    switch (letter.kind) {
      case Letter::Kind::kAnnounced:
        on_announced(letter);
        break;
      case Letter::Kind::kSent: {
        --peers_[index_of(letter.from)].announced;
        ++counters_.messages_sent;
        counters_.payload_bytes_sent += letter.header.payload_bytes;
        counters_.wire_bytes_sent += letter.header.payload_bytes + sizeof(MessageHeader);
        events_.push(
            {TransportEvent::Kind::kSent, letter.from, MessageId{0}, letter.token, letter.header});
        break;
      }
      case Letter::Kind::kLost:
        on_lost(letter.from);
        break;
    }
  }
}

void InprocTransport::on_announced(const Letter& letter) {
  if (free_slots_.empty()) {
    free_slots_.push_back(slots_.size());
    slots_.emplace_back();
  }
  const std::size_t slot = free_slots_.back();
  free_slots_.pop_back();
  Incoming& incoming = slots_[slot];
  incoming.letter = letter;
  incoming.announced = true;
  events_.push({TransportEvent::Kind::kAnnounced, letter.from, id_of(slot), 0, letter.header});
}

void InprocTransport::on_lost(Rank peer) {
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].announced && slots_[slot].letter.from == peer) {
      release(slot);
    }
  }
  Peer& state = peers_[index_of(peer)];
  state.turns.clear();
  state.announced = 0;
  state.lost = true;
  events_.push({TransportEvent::Kind::kPeerLost, peer, MessageId{0}, 0, {}});
}

void InprocTransport::release(std::size_t slot) {
  const std::uint32_t generation = slots_[slot].generation + 1;
  slots_[slot] = Incoming{};
  slots_[slot].generation = generation;
  free_slots_.push_back(slot);
}

bool InprocTransport::move_fragments() {
  const std::size_t ranks = size();
  std::size_t moved_of_each = 0;  // at most: every peer moves one fragment a round
  bool more = true;
  while (more && moved_of_each < options_.window_bytes) {
    more = false;
    for (std::size_t i = 0; i < ranks; ++i) {
      const std::size_t from = (first_in_turn_ + i) % ranks;
      if (!peers_[from].turns.empty() &&
          move_fragment(Rank{static_cast<std::uint32_t>(from)}, peers_[from]) > 0) {
        more = more || !peers_[from].turns.empty();
      }
    }
    moved_of_each += options_.fragment_bytes;
  }
  first_in_turn_ = (first_in_turn_ + 1) % ranks;
  return more;
}

// Returns 0 if the sender is gone: its letter that says so is on the way.
std::size_t InprocTransport::move_fragment(Rank from, Peer& peer) {
  Incoming& message = slots_[peer.turns.front().slot];
  const std::size_t bytes =
      std::min(options_.fragment_bytes, message.buffer.size() - message.moved);
  {
    Lane& lane = hub_->lane(from, rank_);
    MutexLock lock(lane.mutex);
    if (!lane.present) {
      return 0;
    }
    if (bytes > 0) {
      std::memcpy(
          message.buffer.data() + message.moved, message.letter.payload + message.moved, bytes);
    }
    message.moved += bytes;
    if (message.moved == message.buffer.size()) {
      --lane.accepted;
    }
  }
  if (message.moved == message.buffer.size()) {
    finish(from, peer, message);
  }
  return std::max<std::size_t>(bytes, 1);
}

void InprocTransport::finish(Rank from, Peer& peer, Incoming& message) {
  const std::size_t slot = peer.turns.front().slot;
  std::pop_heap(peer.turns.begin(), peer.turns.end());
  peer.turns.pop_back();
  const MessageHeader& header = message.letter.header;
  counters_.payload_bytes_received += header.payload_bytes;
  events_.push({TransportEvent::Kind::kReceived, from, id_of(slot), 0, header});
  hub_->mailbox(from).put({Letter::Kind::kSent, rank_, message.letter.token, header, nullptr});
  release(slot);
}

Status InprocTransport::close(Deadline deadline) {
  if (closed_) {
    return Status::ok();
  }
  closed_ = true;
  read_letters();
  while (move_fragments()) {
  }
  for (std::size_t to = 0; to < size(); ++to) {
    Lane& lane = hub_->lane(rank_, Rank{static_cast<std::uint32_t>(to)});
    MutexLock lock(lane.mutex);
    lane.accepting = false;
  }
  const bool flushed = wait_for_receivers(deadline);
  read_letters();
  leave();
  return flushed ? Status::ok()
                 : Status(StatusCode::kDeadlineExceeded,
                          name_of(rank_) +
                              " left before its peers had received what they accepted; poll them");
}

bool InprocTransport::wait_for_receivers(Deadline deadline) {
  for (;;) {
    hub_->mailbox(rank_).settle(false);
    bool flushed = true;
    for (std::size_t to = 0; to < size(); ++to) {
      if (peers_[to].lost) {
        continue;
      }
      Lane& lane = hub_->lane(rank_, Rank{static_cast<std::uint32_t>(to)});
      MutexLock lock(lane.mutex);
      flushed = flushed && lane.accepted == 0;
    }
    if (flushed || deadline.passed()) {
      return flushed;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left());
    pollfd descriptor_to_watch{descriptor(), POLLIN, 0};
    static_cast<void>(::poll(&descriptor_to_watch, 1, static_cast<int>(left.count())));
    read_letters();
  }
}

void InprocTransport::leave() {
  if (std::exchange(left_, true)) {
    return;
  }
  hub_->mailbox(rank_).shut();
  for (std::size_t to = 0; to < size(); ++to) {
    const Rank peer{static_cast<std::uint32_t>(to)};
    if (peer == rank_) {
      continue;
    }
    {
      Lane& lane = hub_->lane(rank_, peer);
      MutexLock lock(lane.mutex);
      lane.accepting = false;
      lane.present = false;
    }
    hub_->mailbox(peer).put({Letter::Kind::kLost, rank_, 0, {}, nullptr});
  }
}

}  // namespace

Status InprocOptions::validate() const {
  if (fragment_bytes == 0 || window_bytes == 0 || max_announced == 0) {
    return Status(
        StatusCode::kInvalidArgument,
        "transport inproc: fragment_bytes, window_bytes and max_announced must be above 0");
  }
  return Status::ok();
}

Result<std::vector<std::unique_ptr<spi::Transport>>> make_inproc_transports(
    std::size_t size, const InprocOptions& options) {
  STRETTO_TRY(options.validate());
  if (size == 0) {
    return fail(StatusCode::kInvalidArgument, "transport inproc: a group has at least one rank");
  }
  STRETTO_TRY_ASSIGN(auto hub, Hub::make(size));
  std::vector<std::unique_ptr<spi::Transport>> transports;
  transports.reserve(size);
  for (std::size_t rank = 0; rank < size; ++rank) {
    transports.push_back(
        std::make_unique<InprocTransport>(Rank{static_cast<std::uint32_t>(rank)}, hub, options));
  }
  return transports;
}

}  // namespace stretto::transport

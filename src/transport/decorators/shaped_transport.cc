// SPDX-License-Identifier: Apache-2.0
//
// Everything between two shaped ranks travels as messages of the inner transport, of four kinds
// (Word).  All but fragments are without payload, so they need no buffer:
//
//   kAnnounce, header   sender to receiver   a message wants to go; its own header follows
//   kGrant              receiver to sender   it was accepted
//   kFragment           sender to receiver   leaves when the egress has carried it
//   kCredit             receiver to sender   the ingress has carried so many bytes
//
// Each word carries the time at which it left, so that a late poll costs no capacity.
#include "transport/decorators/shaped_transport.hpp"

#include "transport/event_queue.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <deque>
#include <map>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <poll.h>

namespace stretto::transport {
namespace {

using spi::MessageHeader;
using spi::MessageId;
using spi::TransportEvent;
using std::chrono::nanoseconds;

constexpr std::size_t kOverheadBytes = 64;
constexpr nanoseconds kMadeGood = std::chrono::milliseconds(10);
constexpr std::size_t kMaxOutbox = 4096;

enum class Word : std::uint8_t { kAnnounce = 1, kGrant = 2, kFragment = 3, kCredit = 4 };

/// A direction of a link: what it takes to cross, and when it is free.
class Pipe {
 public:
  explicit Pipe(double rate) : rate_(rate) {}
  nanoseconds time_of(std::size_t bytes) const {
    if (rate_ <= 0) {
      return nanoseconds(0);
    }
    // Rounded up: never faster than the link.
    return nanoseconds(
        static_cast<std::int64_t>(std::ceil(static_cast<double>(bytes) * 1e9 / rate_)));
  }
  TimePoint free_at() const { return free_at_; }
  /// Carries bytes that are there from `ready` on; says when the last one is across.
  TimePoint carry(TimePoint ready, std::size_t bytes) {
    free_at_ = std::max(free_at_, ready) + time_of(bytes);
    return free_at_;
  }

 private:
  double rate_;
  TimePoint free_at_{};
};

/// See make_shaped_transport.
///
/// Threading: confined(progress).
class ShapedTransport final : public spi::Transport {
 public:
  ShapedTransport(std::unique_ptr<spi::Transport> inner,
                  const LinkOptions& link,
                  const TimeSource* clock)
      : inner_(std::move(inner)),
        clock_(clock != nullptr ? *clock : system_clock_),
        delay_(link.delay),
        egress_(link.bytes_per_second),
        ingress_(link.bytes_per_second),
        traits_(inner_->traits()),
        peers_(inner_->size()) {
    traits_.name = "shaped(" + traits_.name + ")";
    if (link.bytes_per_second > 0) {
      const auto bytes_in = [&](nanoseconds time) {
        return static_cast<std::size_t>(link.bytes_per_second *
                                        std::chrono::duration<double>(time).count());
      };
      fragment_bytes_ = std::clamp<std::size_t>(
          bytes_in(std::chrono::microseconds(100)), std::size_t{4} << 10, std::size_t{256} << 10);
      window_bytes_ = 16 * fragment_bytes_ + bytes_in(2 * delay_);
    }
    for (Peer& peer : peers_) {
      peer.credit = window_bytes_;
    }
  }

  Rank rank() const noexcept override { return inner_->rank(); }
  std::size_t size() const noexcept override { return inner_->size(); }
  const spi::TransportTraits& traits() const noexcept override { return traits_; }
  spi::TransportCounters counters() const noexcept override {
    spi::TransportCounters counters = inner_->counters();
    counters.payload_bytes_sent = counters_.payload_bytes_sent;
    counters.payload_bytes_received = counters_.payload_bytes_received;
    counters.messages_sent = counters_.messages_sent;
    counters.refused += counters_.refused;
    return counters;
  }
  int descriptor() const noexcept override { return inner_->descriptor(); }
  TimePoint next_due() const noexcept override;

  Status announce(Rank peer,
                  const MessageHeader& header,
                  std::span<const std::byte> payload,
                  std::uint64_t token) override;
  Status accept(Rank peer, MessageId message, std::span<std::byte> buffer) override;
  Result<std::size_t> poll(std::span<TransportEvent> events) override;
  Status close(Deadline deadline) override;

 private:
  struct Outgoing {
    Rank peer{0};
    MessageHeader header;
    std::span<const std::byte> payload;
    std::uint64_t token = 0;
    bool granted = false;
    TimePoint granted_at{};
    std::size_t chosen = 0;            ///< bytes that the egress has carried or carries
    bool all_chosen = false;           ///< also for a message without bytes
    std::size_t fragments_moving = 0;  ///< handed to the inner transport, not sent yet
  };
  struct Incoming {
    Rank peer{0};
    MessageHeader header;
    bool accepted = false;
    std::span<std::byte> buffer;
    std::size_t missing = 0;
    std::size_t announced = 0;  ///< bytes of fragments seen
    TimePoint carried_at{};     ///< when the ingress has carried what was seen
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
  struct Letter {
    MessageHeader header;
    std::span<const std::byte> payload;
    std::uint64_t token;
  };
  struct Peer {
    bool lost = false;
    std::priority_queue<Turn> turns;  ///< granted messages to it
    std::size_t credit = 0;
    TimePoint credit_since{};
    std::uint64_t served = 0;     ///< when the egress last carried something to it
    std::deque<Letter> outbox;    ///< words that the inner transport has not taken yet
    bool header_follows = false;  ///< the next word is the header of `announced`
    MessageHeader announced;
    TimePoint last_event{};  ///< due time of the last event that names it
  };
  /// Something that happens at a known time.
  struct Due {
    TimePoint when;
    std::uint64_t order;
    Word word;  ///< kGrant, kCredit; kAnnounce stands for any event
    Rank peer;
    std::uint64_t value;
    TransportEvent event;
    bool operator<(const Due& other) const {
      return std::pair(other.when, other.order) < std::pair(when, order);
    }
  };
  struct Carried {
    bool busy = false;
    Rank peer{0};
    std::uint64_t id = 0;
    std::size_t offset = 0;
    std::size_t bytes = 0;
    TimePoint finish{};
  };

  Peer& at(Rank peer) { return peers_[index_of(peer)]; }
  Status check_peer(Rank peer) const;
  std::uint64_t key_of(Rank peer, std::uint64_t id) const { return id * size() + index_of(peer); }
  void say(Rank peer, Word word, std::uint64_t id, std::uint64_t value, TimePoint left);
  void post(Rank peer, const Letter& letter);
  Status advance();
  void flush_outbox(Rank peer);
  Status read_inner();
  void on_inner(const TransportEvent& event);
  void on_word(const TransportEvent& event);
  void on_header(const TransportEvent& event, TimePoint left);
  void on_fragment(const TransportEvent& event, TimePoint left);
  void on_fragment_received(const TransportEvent& event);
  void on_lost(Rank peer);
  void refuse() { ++counters_.refused; }
  TimePoint left_at(const MessageHeader& word) const;
  void schedule(TimePoint when, Rank peer, const TransportEvent& event);
  void fire_due(TimePoint now);
  void run_egress(TimePoint now);
  bool choose_fragment();
  void fragment_carried();
  void settle(std::uint64_t id);
  bool flushed() const;

  std::unique_ptr<spi::Transport> inner_;
  SystemClock system_clock_;
  const TimeSource& clock_;
  const nanoseconds delay_;
  std::size_t fragment_bytes_ = SIZE_MAX;
  std::size_t window_bytes_ = SIZE_MAX;
  Pipe egress_;
  Pipe ingress_;
  spi::TransportTraits traits_;
  spi::TransportCounters counters_;
  std::vector<Peer> peers_;
  std::unordered_map<std::uint64_t, Outgoing> outgoing_;
  std::unordered_map<std::uint64_t, Incoming> incoming_;                  // by key_of
  std::map<std::pair<std::size_t, MessageId>, std::uint64_t> fragments_;  // to key
  std::priority_queue<Due> due_;
  Carried carried_;
  EventQueue events_;
  std::uint64_t next_id_ = 1;
  std::uint64_t order_ = 0;
  bool closed_ = false;
};

std::string name_of(Rank rank) {
  return "rank " + std::to_string(index_of(rank));
}

Status ShapedTransport::check_peer(Rank peer) const {
  if (index_of(peer) >= size() || peer == rank() || closed_) {
    return Status(StatusCode::kInvalidArgument,
                  name_of(rank()) + " named " + name_of(peer) +
                      (closed_ ? " after closing its transport; make a new one"
                               : " as a peer; peers are the other ranks of the group"));
  }
  if (peers_[index_of(peer)].lost) {
    return Status(
        StatusCode::kPeerLost,
        name_of(peer) + " is gone; end, or form the group of " + name_of(rank()) + " anew");
  }
  return Status::ok();
}

Status ShapedTransport::announce(Rank peer,
                                 const MessageHeader& header,
                                 std::span<const std::byte> payload,
                                 std::uint64_t token) {
  STRETTO_TRY(check_peer(peer));
  if (payload.size() != header.payload_bytes) {
    return Status(StatusCode::kInvalidArgument,
                  name_of(rank()) + " announced " + std::to_string(header.payload_bytes) +
                      " bytes to " + name_of(peer) + " with a payload of " +
                      std::to_string(payload.size()) + "; they must agree");
  }
  if (at(peer).outbox.size() >= kMaxOutbox) {
    return Status(StatusCode::kWouldBlock, "the inner transport takes no more; poll and repeat");
  }
  const TimePoint now = clock_.now();
  const std::uint64_t id = next_id_++;
  outgoing_[id] = {peer, header, payload, token, false, {}, 0, false, 0};
  if (carried_.busy) {
    carried_.finish += egress_.time_of(kOverheadBytes);
  } else {
    egress_.carry(now, kOverheadBytes);
  }
  say(peer, Word::kAnnounce, id, header.payload_bytes, now);
  MessageHeader follows = header;
  follows.payload_bytes = 0;
  post(peer, {follows, {}, 0});
  return Status::ok();
}

Status ShapedTransport::accept(Rank peer, MessageId message, std::span<std::byte> buffer) {
  STRETTO_TRY(check_peer(peer));
  const auto key = static_cast<std::uint64_t>(message);
  const auto found = incoming_.find(key);
  if (found == incoming_.end() || found->second.peer != peer || found->second.accepted) {
    return Status(StatusCode::kInvalidArgument,
                  name_of(rank()) + " accepted message " + std::to_string(key) + ", which " +
                      name_of(peer) + " did not announce or which was accepted before");
  }
  Incoming& incoming = found->second;
  if (buffer.size() != incoming.header.payload_bytes) {
    return Status(StatusCode::kInvalidArgument,
                  name_of(rank()) + " accepted " + std::to_string(incoming.header.payload_bytes) +
                      " bytes of " + name_of(peer) + " into a buffer of " +
                      std::to_string(buffer.size()) + "; they must agree");
  }
  incoming.accepted = true;
  incoming.buffer = buffer;
  incoming.missing = buffer.size();
  say(peer, Word::kGrant, key / size(), 0, clock_.now());
  return Status::ok();
}

void ShapedTransport::say(
    Rank peer, Word word, std::uint64_t id, std::uint64_t value, TimePoint left) {
  MessageHeader header;
  header.stage = spi::Stage::kUser;
  header.flags = static_cast<std::uint8_t>(word);
  header.step = id;
  header.element_count = value;
  header.plan_hash = static_cast<std::uint64_t>(nanoseconds(left.time_since_epoch()).count());
  post(peer, {header, {}, 0});
}

void ShapedTransport::post(Rank peer, const Letter& letter) {
  at(peer).outbox.push_back(letter);
  flush_outbox(peer);
}

void ShapedTransport::flush_outbox(Rank peer) {
  Peer& state = at(peer);
  while (!state.outbox.empty()) {
    const Letter& letter = state.outbox.front();
    // A lost peer is an event of the inner transport and is dealt with there.
    if (inner_->announce(peer, letter.header, letter.payload, letter.token).code() ==
        StatusCode::kWouldBlock) {
      return;
    }
    state.outbox.pop_front();
  }
}

Result<std::size_t> ShapedTransport::poll(std::span<TransportEvent> events) {
  STRETTO_TRY(advance());
  return events_.take(events);
}

Status ShapedTransport::advance() {
  STRETTO_TRY(read_inner());
  const TimePoint now = clock_.now();
  fire_due(now);
  run_egress(now);
  for (std::size_t peer = 0; peer < size(); ++peer) {
    flush_outbox(Rank{static_cast<std::uint32_t>(peer)});
  }
  return Status::ok();
}

Status ShapedTransport::read_inner() {
  std::array<TransportEvent, 32> events;
  for (;;) {
    STRETTO_TRY_ASSIGN(const std::size_t count, inner_->poll(events));
    for (std::size_t i = 0; i < count; ++i) {
      on_inner(events[i]);
    }
    if (count < events.size()) {
      return Status::ok();
    }
  }
}

void ShapedTransport::on_inner(const TransportEvent& event) {
  switch (event.kind) {
    case TransportEvent::Kind::kAnnounced:
      on_word(event);
      break;
    case TransportEvent::Kind::kReceived:
      on_fragment_received(event);
      break;
    case TransportEvent::Kind::kSent:
      if (const auto found = outgoing_.find(event.token); found != outgoing_.end()) {
        --found->second.fragments_moving;
        settle(event.token);
      }
      break;
    case TransportEvent::Kind::kPeerLost:
      on_lost(event.peer);
      break;
  }
}

// A clock of another host says nothing here: what it says is then held within what can be.
TimePoint ShapedTransport::left_at(const MessageHeader& word) const {
  const TimePoint now = clock_.now();
  const TimePoint said{nanoseconds(static_cast<std::int64_t>(word.plan_hash))};
  return std::clamp(said, now - kMadeGood, now);
}

void ShapedTransport::on_word(const TransportEvent& event) {
  Peer& peer = at(event.peer);
  const MessageHeader& header = event.header;
  if (peer.header_follows) {
    on_header(event, left_at(peer.announced));
  } else if (const auto word = static_cast<Word>(header.flags); word == Word::kFragment) {
    return on_fragment(event, left_at(header));
  } else if (word == Word::kAnnounce) {
    peer.header_follows = true;
    peer.announced = header;
  } else if (word == Word::kGrant || word == Word::kCredit) {
    due_.push({left_at(header) + delay_,
               ++order_,
               word,
               event.peer,
               word == Word::kGrant ? header.step : header.element_count,
               {}});
  } else {
    return refuse();
  }
  if (!inner_->accept(event.peer, event.message, {}).is_ok()) {
    refuse();  // it had a payload, or its sender is gone
  }
}

void ShapedTransport::on_header(const TransportEvent& event, TimePoint left) {
  Peer& peer = at(event.peer);
  peer.header_follows = false;
  const std::uint64_t key = key_of(event.peer, peer.announced.step);
  const auto [entry, is_new] = incoming_.try_emplace(key);
  if (!is_new) {
    return refuse();  // its buffer may be in use
  }
  Incoming& incoming = entry->second;
  incoming.peer = event.peer;
  incoming.header = event.header;
  incoming.header.payload_bytes = peer.announced.element_count;
  ingress_.carry(left + delay_, kOverheadBytes);
  schedule(left + delay_,
           event.peer,
           {TransportEvent::Kind::kAnnounced, event.peer, MessageId{key}, 0, incoming.header});
}

void ShapedTransport::on_fragment(const TransportEvent& event, TimePoint left) {
  const std::uint64_t key = key_of(event.peer, event.header.step);
  const std::size_t offset = event.header.element_count;
  const std::size_t bytes = event.header.payload_bytes;
  const auto found = incoming_.find(key);
  if (found == incoming_.end() || !found->second.accepted || offset != found->second.announced ||
      bytes > found->second.buffer.size() - offset) {
    return refuse();
  }
  Incoming& incoming = found->second;
  incoming.announced += bytes;
  // The first byte arrives while the last one leaves: a message alone crosses at the full rate.
  incoming.carried_at = ingress_.carry(left + delay_ - ingress_.time_of(bytes), bytes);
  due_.push({incoming.carried_at, ++order_, Word::kFragment, event.peer, bytes, {}});
  fragments_[{index_of(event.peer), event.message}] = key;
  if (!inner_->accept(event.peer, event.message, incoming.buffer.subspan(offset, bytes)).is_ok()) {
    refuse();
  }
}

void ShapedTransport::on_fragment_received(const TransportEvent& event) {
  const auto fragment = fragments_.find({index_of(event.peer), event.message});
  if (fragment == fragments_.end()) {
    return;  // a word without payload
  }
  const std::uint64_t key = fragment->second;
  fragments_.erase(fragment);
  Incoming& incoming = incoming_[key];
  incoming.missing -= event.header.payload_bytes;
  if (incoming.missing == 0) {
    schedule(incoming.carried_at,
             event.peer,
             {TransportEvent::Kind::kReceived, event.peer, MessageId{key}, 0, incoming.header});
    incoming_.erase(key);
  }
}

void ShapedTransport::on_lost(Rank peer) {
  Peer& state = at(peer);
  state.lost = true;
  state.turns = {};
  state.outbox.clear();
  std::erase_if(outgoing_, [&](const auto& entry) { return entry.second.peer == peer; });
  std::erase_if(incoming_, [&](const auto& entry) { return entry.second.peer == peer; });
  std::erase_if(fragments_, [&](const auto& entry) { return entry.first.first == index_of(peer); });
  // After what came whole.
  schedule(clock_.now(), peer, {TransportEvent::Kind::kPeerLost, peer, MessageId{0}, 0, {}});
}

void ShapedTransport::schedule(TimePoint when, Rank peer, const TransportEvent& event) {
  // Announcements keep their order and a loss comes last; what is received may overtake neither.
  TimePoint& last = at(peer).last_event;
  last = std::max(last, when);
  const bool in_order = event.kind != TransportEvent::Kind::kReceived;
  due_.push({in_order ? last : when, ++order_, Word::kAnnounce, peer, 0, event});
}

void ShapedTransport::fire_due(TimePoint now) {
  while (!due_.empty() && due_.top().when <= now) {
    const Due due = due_.top();
    due_.pop();
    Peer& peer = at(due.peer);
    switch (due.word) {
      case Word::kAnnounce:
        if (due.event.kind == TransportEvent::Kind::kReceived) {
          counters_.payload_bytes_received += due.event.header.payload_bytes;
        }
        events_.push(due.event);
        break;
      case Word::kGrant:
        if (const auto found = outgoing_.find(due.value);
            found != outgoing_.end() && found->second.peer == due.peer && !found->second.granted) {
          found->second.granted = true;
          found->second.granted_at = due.when;
          peer.turns.push({found->second.header.priority, ++order_, due.value});
        }
        break;
      case Word::kCredit:
        if (peer.credit < fragment_bytes_) {
          peer.credit_since = due.when;
        }
        peer.credit =
            std::min(window_bytes_, peer.credit + std::min(due.value, window_bytes_ - peer.credit));
        break;
      case Word::kFragment:  // the ingress has carried one: the sender may send as much again
        if (!peer.lost && window_bytes_ != SIZE_MAX) {
          say(due.peer, Word::kCredit, 0, due.value, due.when);
        }
        break;
    }
  }
}

void ShapedTransport::run_egress(TimePoint now) {
  for (;;) {
    if (carried_.busy) {
      if (carried_.finish > now) {
        return;
      }
      fragment_carried();
    }
    if (!choose_fragment()) {
      return;
    }
  }
}

// Among the fragments that could leave at the earliest moment at which any could: the smallest
// priority, then the peer that was served longest ago.
bool ShapedTransport::choose_fragment() {
  const auto fragment_of = [&](const Peer& peer) {
    const Outgoing& message = outgoing_.at(peer.turns.top().id);
    return std::min(fragment_bytes_, message.payload.size() - message.chosen);
  };
  const auto ready_at = [&](const Peer& peer) {
    if (peer.turns.empty() || peer.credit < fragment_of(peer)) {
      return TimePoint::max();
    }
    return std::max(
        {outgoing_.at(peer.turns.top().id).granted_at, peer.credit_since, egress_.free_at()});
  };
  TimePoint start = TimePoint::max();
  for (const Peer& peer : peers_) {
    start = std::min(start, ready_at(peer));
  }
  if (start == TimePoint::max()) {
    return false;
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
  const std::uint64_t id = best->turns.top().id;
  Outgoing& message = outgoing_.at(id);
  const std::size_t bytes = fragment_of(*best);
  carried_ = {true, message.peer, id, message.chosen, bytes, start + egress_.time_of(bytes)};
  message.chosen += bytes;
  best->credit -= bytes;
  best->served = ++order_;
  if (message.chosen == message.payload.size()) {
    message.all_chosen = true;
    best->turns.pop();
  }
  return true;
}

void ShapedTransport::fragment_carried() {
  carried_.busy = false;
  egress_.carry(carried_.finish, 0);
  const auto found = outgoing_.find(carried_.id);
  if (found == outgoing_.end()) {
    return;  // its peer was lost meanwhile
  }
  MessageHeader header;
  header.stage = spi::Stage::kUser;
  header.flags = static_cast<std::uint8_t>(Word::kFragment);
  header.step = carried_.id;
  header.element_count = carried_.offset;
  header.payload_bytes = carried_.bytes;
  header.priority = found->second.header.priority;
  header.plan_hash =
      static_cast<std::uint64_t>(nanoseconds(carried_.finish.time_since_epoch()).count());
  ++found->second.fragments_moving;
  post(carried_.peer,
       {header, found->second.payload.subspan(carried_.offset, carried_.bytes), carried_.id});
}

void ShapedTransport::settle(std::uint64_t id) {
  const Outgoing& message = outgoing_.at(id);
  const bool carrying = carried_.busy && carried_.id == id;
  if (message.all_chosen && !carrying && message.fragments_moving == 0) {
    ++counters_.messages_sent;
    counters_.payload_bytes_sent += message.payload.size();
    events_.push(
        {TransportEvent::Kind::kSent, message.peer, MessageId{0}, message.token, message.header});
    outgoing_.erase(id);
  }
}

TimePoint ShapedTransport::next_due() const noexcept {
  TimePoint due = inner_->next_due();
  if (!events_.empty()) {
    due = std::min(due, clock_.now());
  }
  if (!due_.empty()) {
    due = std::min(due, due_.top().when);
  }
  if (carried_.busy) {
    due = std::min(due, carried_.finish);
  }
  return due;
}

bool ShapedTransport::flushed() const {
  const auto moves = [](const auto& entry) { return entry.second.granted; };
  const auto comes = [](const auto& entry) { return entry.second.accepted; };
  return std::ranges::none_of(outgoing_, moves) && std::ranges::none_of(incoming_, comes) &&
         std::ranges::all_of(peers_, [](const Peer& peer) { return peer.outbox.empty(); });
}

Status ShapedTransport::close(Deadline deadline) {
  if (closed_) {
    return Status::ok();
  }
  STRETTO_TRY(advance());
  while (!flushed() && !deadline.passed()) {
    const auto now = Clock::now();
    const auto wait = std::max(std::min(next_due(), deadline.when()), now) - now;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(wait);
    const timespec timeout{seconds.count(), static_cast<long>((wait - seconds).count())};
    pollfd descriptor_to_watch{descriptor(), POLLIN, 0};
    if (events_.empty()) {
      static_cast<void>(::ppoll(&descriptor_to_watch, 1, &timeout, nullptr));
    }
    STRETTO_TRY(advance());
  }
  closed_ = true;
  return inner_->close(deadline);
}

}  // namespace

Result<std::unique_ptr<spi::Transport>> make_shaped_transport(std::unique_ptr<spi::Transport> inner,
                                                              const LinkOptions& link,
                                                              const TimeSource* clock) {
  if (inner == nullptr || link.bytes_per_second < 0 || link.delay.count() < 0) {
    return fail(
        StatusCode::kInvalidArgument,
        "transport shaped: needs a transport, and a rate and a delay that are not negative");
  }
  return std::make_unique<ShapedTransport>(std::move(inner), link, clock);
}

}  // namespace stretto::transport

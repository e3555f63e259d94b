// SPDX-License-Identifier: Apache-2.0
//
// The egress decides which fragment leaves when (shaped_egress.hpp), the ingress when it is there
// (shaped_ingress.hpp); they talk in words (shaped_words.hpp).  Here the words are sent and read,
// and what is due at a known time happens then.
#include "transport/decorators/shaped_transport.hpp"

#include "transport/decorators/shaped_egress.hpp"
#include "transport/decorators/shaped_ingress.hpp"
#include "transport/decorators/shaped_timetable.hpp"
#include "transport/decorators/shaped_words.hpp"
#include "transport/event_queue.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>

namespace stretto::transport {
namespace {

using spi::MessageHeader;
using spi::MessageId;
using spi::TransportEvent;

constexpr std::size_t kMaxOutbox = 4096;

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
        shape_(link),
        egress_(shape_, inner_->size()),
        ingress_(shape_, inner_->rank(), inner_->size()),
        traits_(inner_->traits()),
        peers_(inner_->size()) {
    traits_.name = "shaped(" + traits_.name + ")";
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
  struct Letter {
    MessageHeader header;
    std::span<const std::byte> payload;
    std::uint64_t token;
  };
  struct Peer {
    bool lost = false;
    std::deque<Letter> outbox;    ///< words that the inner transport has not taken yet
    bool header_follows = false;  ///< the next word is the header of `announced`
    MessageHeader announced;
    TimePoint last_event{};  ///< due time of the last event that names it
  };

  Peer& at(Rank peer) { return peers_[index_of(peer)]; }
  Status check_peer(Rank peer) const;
  void say(Rank peer, Word word, std::uint64_t id, std::uint64_t value, TimePoint left);
  void post(Rank peer, const Letter& letter);
  Status advance();
  void flush_outbox(Rank peer);
  Status read_inner();
  void on_inner(const TransportEvent& event);
  void on_word(const TransportEvent& event);
  void on_header(const TransportEvent& event, TimePoint left);
  void on_fragment(const TransportEvent& event, TimePoint left);
  void on_lost(Rank peer);
  void refuse() { ++counters_.refused; }
  void schedule(TimePoint when, Rank peer, const TransportEvent& event);
  void fire_due(TimePoint now);
  void fire(const ShapedTimetable::Entry& due);
  void run_egress(TimePoint now);
  void sent(const TransportEvent& event);
  bool flushed() const;

  std::unique_ptr<spi::Transport> inner_;
  SystemClock system_clock_;
  const TimeSource& clock_;
  const LinkShape shape_;
  ShapedEgress egress_;
  ShapedIngress ingress_;
  spi::TransportTraits traits_;
  spi::TransportCounters counters_;
  std::vector<Peer> peers_;
  ShapedTimetable due_;
  EventQueue events_;
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
  const std::uint64_t id = egress_.add(peer, header, payload, token, now);
  say(peer, Word::kAnnounce, id, header.payload_bytes, now);
  MessageHeader follows = header;
  follows.payload_bytes = 0;
  post(peer, {follows, {}, 0});
  return Status::ok();
}

Status ShapedTransport::accept(Rank peer, MessageId message, std::span<std::byte> buffer) {
  STRETTO_TRY(check_peer(peer));
  STRETTO_TRY_ASSIGN(const std::uint64_t id, ingress_.accept(peer, message, buffer));
  say(peer, Word::kGrant, id, 0, clock_.now());
  return Status::ok();
}

void ShapedTransport::say(
    Rank peer, Word word, std::uint64_t id, std::uint64_t value, TimePoint left) {
  post(peer, {make_word(word, id, value, left), {}, 0});
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
      if (const auto whole = ingress_.fragment_received(event)) {
        schedule(whole->when, event.peer, whole->event);
      }
      break;
    case TransportEvent::Kind::kSent:
      if (const auto whole = egress_.fragment_sent(event.token)) {
        sent(*whole);
      }
      break;
    case TransportEvent::Kind::kPeerLost:
      on_lost(event.peer);
      break;
  }
}

void ShapedTransport::on_word(const TransportEvent& event) {
  Peer& peer = at(event.peer);
  const MessageHeader& header = event.header;
  if (peer.header_follows) {
    on_header(event, left_at(peer.announced, clock_.now()));
  } else if (const auto word = static_cast<Word>(header.flags); word == Word::kFragment) {
    return on_fragment(event, left_at(header, clock_.now()));
  } else if (word == Word::kAnnounce) {
    peer.header_follows = true;
    peer.announced = header;
  } else if (word == Word::kGrant || word == Word::kCredit) {
    due_.add({left_at(header, clock_.now()) + shape_.delay,
              event.peer,
              word,
              word == Word::kGrant ? header.step : header.element_count});
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
  MessageHeader header = event.header;
  header.payload_bytes = peer.announced.element_count;
  const auto arrival = ingress_.announced(event.peer, peer.announced.step, header, left);
  if (!arrival) {
    return refuse();
  }
  schedule(arrival->when, event.peer, arrival->event);
}

void ShapedTransport::on_fragment(const TransportEvent& event, TimePoint left) {
  const auto landing = ingress_.fragment(event, left);
  if (!landing) {
    return refuse();
  }
  due_.add({landing->carried_at, event.peer, Word::kFragment, event.header.payload_bytes});
  if (!inner_->accept(event.peer, event.message, landing->place).is_ok()) {
    refuse();
  }
}

void ShapedTransport::on_lost(Rank peer) {
  Peer& state = at(peer);
  state.lost = true;
  state.outbox.clear();
  egress_.lose(peer);
  ingress_.lose(peer);
  // After what came whole.
  schedule(clock_.now(), peer, {TransportEvent::Kind::kPeerLost, peer, MessageId{0}, 0, {}});
}

void ShapedTransport::schedule(TimePoint when, Rank peer, const TransportEvent& event) {
  // Announcements keep their order and a loss comes last; what is received may overtake neither.
  TimePoint& last = at(peer).last_event;
  last = std::max(last, when);
  const bool in_order = event.kind != TransportEvent::Kind::kReceived;
  due_.add({in_order ? last : when, peer, Word::kAnnounce, 0, event});
}

void ShapedTransport::fire_due(TimePoint now) {
  while (const auto due = due_.take(now)) {
    fire(*due);
  }
}

void ShapedTransport::fire(const ShapedTimetable::Entry& due) {
  switch (due.word) {
    case Word::kAnnounce:
      if (due.event.kind == TransportEvent::Kind::kReceived) {
        counters_.payload_bytes_received += due.event.header.payload_bytes;
      }
      events_.push(due.event);
      break;
    case Word::kGrant:
      egress_.granted(due.peer, due.value, due.when);
      break;
    case Word::kCredit:
      egress_.credited(due.peer, due.value, due.when);
      break;
    case Word::kFragment:  // the ingress has carried one: the sender may send as much again
      if (!at(due.peer).lost && shape_.window_bytes != SIZE_MAX) {
        say(due.peer, Word::kCredit, 0, due.value, due.when);
      }
      break;
  }
}

void ShapedTransport::run_egress(TimePoint now) {
  while (const auto fragment = egress_.next(now)) {
    MessageHeader header =
        make_word(Word::kFragment, fragment->id, fragment->offset, fragment->left);
    header.payload_bytes = fragment->bytes.size();
    header.priority = fragment->priority;
    post(fragment->peer, {header, fragment->bytes, fragment->id});
  }
}

void ShapedTransport::sent(const TransportEvent& event) {
  ++counters_.messages_sent;
  counters_.payload_bytes_sent += event.header.payload_bytes;
  events_.push(event);
}

TimePoint ShapedTransport::next_due() const noexcept {
  TimePoint due = inner_->next_due();
  if (!events_.empty()) {
    due = std::min(due, clock_.now());
  }
  return std::min({due, due_.next_due(), egress_.next_due()});
}

bool ShapedTransport::flushed() const {
  return !egress_.is_moving() && !ingress_.is_moving() &&
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

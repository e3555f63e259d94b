// SPDX-License-Identifier: Apache-2.0
#include "transport/decorators/faulty_transport.hpp"

#include "base/log.hpp"
#include "transport/event_queue.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace stretto::transport {
namespace {

using spi::MessageHeader;
using spi::MessageId;
using spi::TransportEvent;
using Kind = spi::TransportEvent::Kind;

/// See make_faulty_transport.
///
/// Threading: confined(progress).
class FaultyTransport final : public spi::Transport {
 public:
  FaultyTransport(std::unique_ptr<spi::Transport> inner, const FaultPlan& plan)
      : inner_(std::move(inner)),
        plan_(plan),
        random_(plan.seed),
        rank_(inner_->rank()),
        size_(inner_->size()),
        traits_(inner_->traits()),
        lost_(size_, false) {
    traits_.name = "faulty(" + traits_.name + ")";
    log(LogLevel::kInfo,
        "transport faulty at rank " + std::to_string(index_of(rank_)) + ": " + plan_.describe());
  }

  Rank rank() const noexcept override { return rank_; }
  std::size_t size() const noexcept override { return size_; }
  const spi::TransportTraits& traits() const noexcept override { return traits_; }
  spi::TransportCounters counters() const noexcept override {
    return inner_ != nullptr ? inner_->counters() : last_counters_;
  }
  int descriptor() const noexcept override { return inner_ != nullptr ? inner_->descriptor() : -1; }
  TimePoint next_due() const noexcept override {
    if (!held_.empty() || !ready_.empty()) {
      return Clock::now();
    }
    return inner_ != nullptr ? inner_->next_due() : TimePoint::max();
  }

  void reserve(std::size_t messages) override {
    if (inner_ != nullptr) {
      inner_->reserve(messages);
    }
  }
  Status announce(Rank peer,
                  const MessageHeader& header,
                  std::span<const std::byte> payload,
                  std::uint64_t token) override {
    count_operation();
    STRETTO_TRY(check(peer));
    if (!stages(peer)) {
      return inner_->announce(peer, header, payload, token);
    }
    copies_.emplace_back(payload.begin(), payload.end());
    const Status status = inner_->announce(peer, header, copies_.back(), token);
    if (!status.is_ok()) {
      copies_.pop_back();
    }
    return status;
  }

  Status accept(Rank peer, MessageId message, std::span<std::byte> buffer) override {
    count_operation();
    STRETTO_TRY(check(peer));
    std::span<std::byte> inner_buffer = buffer;
    if (stages(peer)) {
      inner_buffer = copies_.emplace_back(buffer.size());
    }
    const Status status = inner_->accept(peer, message, inner_buffer);
    if (status.is_ok()) {
      buffers_[{peer, message}] = {buffer, inner_buffer};
    }
    return status;
  }

  Result<std::size_t> poll(std::span<TransportEvent> events) override;

  Status close(Deadline deadline) override {
    return inner_ != nullptr ? inner_->close(deadline) : Status::ok();
  }

 private:
  struct Held {
    TransportEvent event;
    std::size_t polls = 0;  ///< until it may be reported
  };
  struct Buffers {
    std::span<std::byte> user;
    std::span<std::byte> inner;
  };

  bool stages(Rank peer) const { return plan_.lose_at.has_value() && peer == plan_.lost_peer; }
  Status check(Rank peer) const {
    if (index_of(peer) < size_ && lost_[index_of(peer)]) {
      return Status(StatusCode::kPeerLost,
                    "rank " + std::to_string(index_of(peer)) +
                        " is gone, as the fault plan of rank " + std::to_string(index_of(rank_)) +
                        " says (" + plan_.describe() + ")");
    }
    return Status::ok();
  }
  void count_operation();
  void die();
  void lose(Rank peer);
  void take_in(const TransportEvent& event);
  void hold(const TransportEvent& event);
  void let_go();
  void deliver(const TransportEvent& event);
  void flip_bit(std::span<std::byte> bytes) {
    if (!bytes.empty()) {
      bytes[random_() % bytes.size()] ^= static_cast<std::byte>(1U << (random_() % 8));
    }
  }

  std::unique_ptr<spi::Transport> inner_;  // null: this rank has died
  const FaultPlan plan_;
  std::mt19937_64 random_;
  const Rank rank_;
  const std::size_t size_;
  spi::TransportTraits traits_;
  spi::TransportCounters last_counters_;
  std::vector<bool> lost_;
  std::list<Held> held_;
  EventQueue ready_;
  std::map<std::pair<Rank, MessageId>, Buffers> buffers_;
  std::list<std::vector<std::byte>> copies_;  // until the end: the inner transport may use them
  std::size_t operations_ = 0;
  std::size_t announcements_ = 0;
  std::size_t received_ = 0;
};

Result<std::size_t> FaultyTransport::poll(std::span<TransportEvent> events) {
  if (events.empty()) {
    return std::size_t{0};
  }
  std::array<TransportEvent, 16> batch;
  if (inner_ != nullptr) {
    // One batch: a descriptor that stays readable, or next_due, asks for the rest.
    STRETTO_TRY_ASSIGN(const std::size_t count,
                       inner_->poll(std::span(batch).first(std::min(events.size(), batch.size()))));
    for (std::size_t i = 0; i < count; ++i) {
      take_in(batch[i]);
    }
  }
  let_go();
  return ready_.take(events);
}

void FaultyTransport::take_in(const TransportEvent& event) {
  if (lost_[index_of(event.peer)]) {
    return;
  }
  hold(event);
  if (event.kind != Kind::kAnnounced) {
    return;
  }
  const std::size_t number = announcements_++;
  if (number == plan_.flip_header_of) {
    flip_bit(std::as_writable_bytes(std::span(&held_.back().event.header, 1)));
  }
  if (number == plan_.duplicate_announcement) {
    hold(held_.back().event);
  }
}

void FaultyTransport::hold(const TransportEvent& event) {
  const bool delayed = plan_.delay_one_in > 0 && random_() % plan_.delay_one_in == 0;
  held_.push_back(
      {event, delayed ? 1 + random_() % std::max<std::size_t>(plan_.longest_delay, 1) : 0});
}

// The contract keeps a peer's announcements in order and its loss last; the rest is free.
void FaultyTransport::let_go() {
  std::vector<bool> announcement_waits(size_, false);
  std::vector<bool> something_waits(size_, false);
  for (auto next = held_.begin(); next != held_.end();) {
    const std::size_t peer = index_of(next->event.peer);
    if (lost_[peer]) {
      next = held_.erase(next);
      continue;
    }
    const bool in_order = next->event.kind == Kind::kAnnounced ? announcement_waits[peer] : false;
    const bool behind_all = next->event.kind == Kind::kPeerLost || !plan_.reorder;
    if (next->polls > 0 || in_order || (behind_all && something_waits[peer])) {
      next->polls -= next->polls > 0 ? 1 : 0;
      something_waits[peer] = true;
      announcement_waits[peer] = announcement_waits[peer] || next->event.kind == Kind::kAnnounced;
      ++next;
      continue;
    }
    const TransportEvent event = next->event;
    next = held_.erase(next);
    deliver(event);
  }
}

void FaultyTransport::deliver(const TransportEvent& event) {
  count_operation();
  if (lost_[index_of(event.peer)]) {
    return;  // by the plan, at this very operation
  }
  if (event.kind == Kind::kPeerLost) {
    return lose(event.peer);
  }
  if (event.kind == Kind::kReceived) {
    const auto found = buffers_.find({event.peer, event.message});
    if (found != buffers_.end()) {
      const auto [user, inner] = found->second;
      if (user.data() != inner.data()) {
        std::ranges::copy(inner, user.begin());
      }
      if (received_ == plan_.flip_payload_of) {
        flip_bit(user);
      }
      buffers_.erase(found);
    }
    ++received_;
  }
  ready_.push(event);
}

void FaultyTransport::count_operation() {
  const std::size_t operation = operations_++;
  if (operation == plan_.die_at) {
    die();
  } else if (operation == plan_.lose_at && inner_ != nullptr) {
    lose(plan_.lost_peer);
  }
}

void FaultyTransport::die() {
  last_counters_ = inner_->counters();
  inner_.reset();
  for (std::size_t peer = 0; peer < size_; ++peer) {
    if (peer != index_of(rank_)) {
      lose(Rank{static_cast<std::uint32_t>(peer)});
    }
  }
}

void FaultyTransport::lose(Rank peer) {
  if (index_of(peer) >= size_ || lost_[index_of(peer)]) {
    return;
  }
  lost_[index_of(peer)] = true;
  std::erase_if(buffers_, [&](const auto& entry) { return entry.first.first == peer; });
  ready_.push({Kind::kPeerLost, peer, MessageId{0}, 0, {}});
}

}  // namespace

std::string FaultPlan::describe() const {
  std::string text = "seed " + std::to_string(seed);
  const auto add = [&](const char* what, const std::optional<std::size_t>& number) {
    if (number.has_value()) {
      text += std::string(", ") + what + " " + std::to_string(*number);
    }
  };
  add("dies at operation", die_at);
  add(("loses rank " + std::to_string(index_of(lost_peer)) + " at operation").c_str(), lose_at);
  if (delay_one_in > 0) {
    text += std::string(", ") + (reorder ? "reorders" : "delays") + " one event in " +
            std::to_string(delay_one_in) + " by up to " + std::to_string(longest_delay) + " polls";
  }
  add("repeats announcement", duplicate_announcement);
  add("flips a bit of the header of announcement", flip_header_of);
  add("flips a bit of received message", flip_payload_of);
  return text;
}

std::unique_ptr<spi::Transport> make_faulty_transport(std::unique_ptr<spi::Transport> inner,
                                                      const FaultPlan& plan) {
  return std::make_unique<FaultyTransport>(std::move(inner), plan);
}

}  // namespace stretto::transport

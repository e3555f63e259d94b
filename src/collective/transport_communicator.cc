// SPDX-License-Identifier: Apache-2.0
#include "collective/transport_communicator.hpp"

#include "registry/registry.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <thread>
#include <utility>

#include <poll.h>

namespace stretto::collective {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
// A sleeper looks around this often even if nobody rings: it only bounds the harm of a missed sign.
constexpr auto kNap = std::chrono::milliseconds(500);

}  // namespace

TransportCommunicator::TransportCommunicator(std::shared_ptr<Group> group,
                                             const EngineOptions& options)
    : BaseCommunicator(std::move(group), options),
      may_spin_(group_->local_size() < std::thread::hardware_concurrency()) {}

Result<std::unique_ptr<Communicator>> TransportCommunicator::make(std::shared_ptr<Group> group,
                                                                  const EngineOptions& options) {
  auto made =
      std::unique_ptr<TransportCommunicator>(new TransportCommunicator(std::move(group), options));
  STRETTO_TRY(made->build());
  return made;
}

Status TransportCommunicator::build() {
  EngineOptions options = options_;
  // A rank's input may be its output: with one hop it would be overwritten while it is still sent.
  // With an owner or a ring a result comes only after all parts have been read.
  options.one_hop_bytes = 0;
  if (options.exchange == ExchangeKind::kAuto) {
    options.exchange = ExchangeKind::kOwner;
  }
  if (options.exchange == ExchangeKind::kOneHop) {
    return {StatusCode::kUnsupported,
            "collectives work in place, which one-hop cannot; choose the exchange owner or shared"};
  }
  STRETTO_TRY_ASSIGN(auto for_exchange, registry::make_transport(*group_, options));
  transport_ = std::make_unique<PlanGate>(std::move(for_exchange));
  STRETTO_TRY_ASSIGN(messages_, registry::make_transport(*group_, options));
  peers_.resize(size());
  STRETTO_TRY_ASSIGN(device_, registry::make_device(options));
  STRETTO_TRY_ASSIGN(exchange_,
                     registry::make_exchange(*group_, *transport_, *device_, nullptr, options));
  name_ = exchange_->traits().name;
  order_ = exchange_->traits().order;
  return {};
}

Result<std::unique_ptr<spi::Buffer>> TransportCommunicator::allocate(std::size_t bytes) {
  return device_->allocate(bytes);
}

std::uint64_t TransportCommunicator::start(const Job& job) {
  jobs_.push_back(job);
  recent_[++issued_ % recent_.size()] = job.call;
  const auto [first, last] = notices_.equal_range(issued_);
  for (auto notice = first; notice != last && error_.is_ok(); ++notice) {
    const auto& [peer, theirs] = notice->second;
    keep(located(check_notice(issued_, peer, theirs)));
  }
  notices_.erase(first, last);
  return issued_;
}

bool TransportCommunicator::ended(std::uint64_t number) const noexcept {
  if (!MessageNumber::is_message(number)) {
    return ended_ >= number;
  }
  const Peer& peer = peers_[MessageNumber::peer(number)];
  return MessageNumber::place(number) <=
         (MessageNumber::receives(number) ? peer.receives_ended : peer.sends_ended).count();
}

bool TransportCommunicator::advance_to(std::uint64_t number) {
  while (!ended(number) && error_.is_ok() && advance()) {
  }
  return ended(number) || !error_.is_ok();
}

/// Moves what can move; returns whether anything did.
bool TransportCommunicator::advance() {
  const auto messages = advance_messages();
  keep(messages ? Status() : located(messages.error()));
  if (!error_.is_ok()) {
    return false;
  }
  const auto job = advance_job();
  keep(job ? Status() : located(job.error()));
  return error_.is_ok() && (*messages || *job);
}

Result<bool> TransportCommunicator::advance_job() {
  if (jobs_.empty()) {
    return false;
  }
  if (!begun_) {
    STRETTO_TRY(begin());
    return true;
  }
  if (call().sums() && call().count > 0) {
    return advance_reduction();
  }
  if (!all_moved()) {
    return false;
  }
  end();
  return true;
}

Status TransportCommunicator::begin() {
  begun_ = true;
  if (size() > 1) {
    send_notice(after(1), Use::kNotice, rank(), call());
  }
  switch (call().kind) {
    case Kind::kAllReduce:
    case Kind::kReduceScatter:
      // The exchange's steps follow one another: none may be empty.
      return call().count > 0 ? begin_reduction() : Status();
    case Kind::kAllGather:
      begin_all_gather();
      break;
    case Kind::kBroadcast:
      begin_broadcast();
      break;
    case Kind::kBarrier:
      begin_barrier();
      break;
  }
  for (std::size_t peer = 0; peer < size(); ++peer) {
    STRETTO_TRY(take_early(peer));
    if (peers_[peer].lost) {
      STRETTO_TRY(take_lost(peer));
    }
  }
  return {};
}

void TransportCommunicator::end() {
  jobs_.pop_front();
  begun_ = false;
  ++ended_;
}

/// Keeps the first error; nothing moves after it.
void TransportCommunicator::keep(const Status& status) {
  if (!error_.is_ok() || status.is_ok()) {
    return;
  }
  if (status.code() == StatusCode::kPeerLost) {
    // A rank that found another to call differently says so before it goes.
    if (const auto last_words = take_events(); !last_words) {
      error_ = located(last_words.error());
    }
  }
  if (error_.code() != StatusCode::kInvalidArgument) {
    // Who closes a connection may do so because of another's loss: the cause counts.
    const Status health = group_->control().health();
    error_ = status.code() == StatusCode::kPeerLost && !health.is_ok() ? health : status;
  }
  let_go();
}

/// Lets go of the users' memory: peers that are threads of this process would still read it.
void TransportCommunicator::let_go() noexcept {
  transport_.reset();
  messages_.reset();
  exchange_.reset();
}

/// What was sent may still lie in this rank's socket.  Gone with it, a frame of the peer that comes
/// late, such as a credit for what it has read, would be answered by a reset, and the rest be lost.
Status TransportCommunicator::leave(Deadline deadline) {
  const Status messages = messages_->close(deadline);
  const Status reductions = transport_->close(deadline);
  let_go();
  return messages.is_ok() ? reductions : messages;
}

Status TransportCommunicator::wait_for(std::uint64_t number, Deadline deadline) {
  TimePoint last_work = Clock::now();
  while (!advance_to(number)) {
    const TimePoint now = Clock::now();
    if (may_spin_ && now - last_work < kSpin) {
      continue;
    }
    if (now >= deadline.when()) {
      return not_ended(number);
    }
    STRETTO_TRY(sleep(deadline));
    last_work = Clock::now();
  }
  return ended(number) ? Status() : error_;
}

Status TransportCommunicator::sleep(Deadline deadline) {
  const TimePoint due = std::min(exchange_->next_due(), messages_->next_due());
  auto wait = std::min<std::chrono::nanoseconds>(deadline.left(), kNap);
  if (due != TimePoint::max()) {
    wait = std::clamp<std::chrono::nanoseconds>(
        due == TimePoint::min() ? std::chrono::nanoseconds(0) : due - Clock::now(),
        std::chrono::nanoseconds(0),
        wait);
  }
  std::array<pollfd, 3> descriptors{{{exchange_->descriptor(), POLLIN, 0},
                                     {messages_->descriptor(), POLLIN, 0},
                                     {group_->control().descriptor(), POLLIN, 0}}};
  timespec timeout{};
  timeout.tv_nsec = static_cast<long>(wait.count());
  static_cast<void>(::ppoll(descriptors.data(), descriptors.size(), &timeout, nullptr));
  keep(group_->control().health());
  return error_;
}

}  // namespace stretto::collective

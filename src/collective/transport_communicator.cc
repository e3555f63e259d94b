// SPDX-License-Identifier: Apache-2.0
#include "collective/transport_communicator.hpp"

#include "base/byte_order.hpp"
#include "base/hash.hpp"
#include "registry/registry.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include <poll.h>

namespace stretto::collective {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
// A sleeper looks around this often even if nobody rings: it only bounds the harm of a missed sign.
constexpr auto kNap = std::chrono::milliseconds(500);
/// What all ranks together send over the control connections at once.
constexpr std::size_t kControlBytes = std::size_t{16} << 20;

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
  // With an owner a result comes only after the owner has all parts.
  options.one_hop_bytes = 0;
  if (options.exchange == ExchangeKind::kAuto) {
    options.exchange = ExchangeKind::kOwner;
  }
  if (options.exchange == ExchangeKind::kOneHop) {
    return {StatusCode::kUnsupported,
            "collectives work in place, which one-hop cannot; choose the exchange owner or shared"};
  }
  STRETTO_TRY_ASSIGN(transport_, registry::make_transport(*group_, options));
  STRETTO_TRY_ASSIGN(messages_, registry::make_transport(*group_, options));
  peers_.resize(size());
  STRETTO_TRY_ASSIGN(device_, registry::make_device(options));
  STRETTO_TRY_ASSIGN(exchange_, registry::make_exchange(*group_, *transport_, *device_, options));
  return {};
}

Result<std::unique_ptr<spi::Buffer>> TransportCommunicator::allocate(std::size_t bytes) {
  return device_->allocate(bytes);
}

std::uint64_t TransportCommunicator::start(const Job& job) {
  jobs_.push_back(job);
  return ++issued_;
}

bool TransportCommunicator::ended(std::uint64_t number) const noexcept {
  if (!MessageNumber::is_message(number)) {
    return ended_ >= number;
  }
  const Peer& peer = peers_[MessageNumber::peer(number)];
  return MessageNumber::place(number) <=
         (MessageNumber::receives(number) ? peer.receives_ended : peer.sends_ended);
}

bool TransportCommunicator::advance_to(std::uint64_t number) {
  while (!ended(number) && error_.is_ok() && advance()) {
  }
  return ended(number) || !error_.is_ok();
}

/// Moves what can move; returns whether anything did.
bool TransportCommunicator::advance() {
  auto messages = advance_messages();
  if (!messages) {
    error_ = messages.error();
    return false;
  }
  return advance_job() || *messages;
}

bool TransportCommunicator::advance_job() {
  if (jobs_.empty()) {
    return false;
  }
  if (!begun_) {
    error_ = begin();
    return error_.is_ok();
  }
  error_ = submit();
  std::array<spi::ExchangeEvent, 64> events;
  std::size_t came = 0;
  if (error_.is_ok()) {
    auto polled = exchange_->poll(events);
    error_ = polled ? Status() : polled.error();
    came = polled ? *polled : 0;
  }
  for (std::size_t i = 0; i < came; ++i) {
    std::size_t& counter = events[i].kind == spi::ExchangeEvent::Kind::kResult ? home_ : released_;
    counter += events[i].shard_count;
  }
  if (error_.is_ok() && home_ == shards_ && released_ == shards_) {
    if (jobs_.front().call.kind == Kind::kReduceScatter) {
      const std::size_t bytes = jobs_.front().call.count * size_of(jobs_.front().call.dtype);
      if (bytes > 0) {
        std::memcpy(jobs_.front().output, scratch_->data() + rank() * bytes, bytes);
      }
    }
    end();
    return true;
  }
  return came > 0 && error_.is_ok();
}

void TransportCommunicator::end() {
  jobs_.pop_front();
  begun_ = false;
  ++ended_;
}

Status TransportCommunicator::begin() {
  const Job& job = jobs_.front();
  if (job.call.kind == Kind::kAllReduce || job.call.kind == Kind::kReduceScatter) {
    if (job.call.count == 0) {  // the exchange's steps follow one another: none may be empty
      end();
      return {};
    }
    begun_ = true;
    ++step_;
    next_chunk_ = 0;
    home_ = 0;
    released_ = 0;
    return take_plan(job);
  }
  // The rest is rare and goes over the control connections, bit by bit as it is.
  const bool sends = job.call.kind == Kind::kAllGather || rank() == job.call.root;
  const std::size_t senders = job.call.kind == Kind::kAllGather ? size() : 1;
  const std::size_t most = kControlBytes / senders;
  std::size_t first = 0;
  do {
    const std::size_t bytes = std::min(most, job.call.count - first);
    const std::span<const std::byte> mine(sends ? job.input + first : nullptr, sends ? bytes : 0);
    STRETTO_TRY_ASSIGN(
        const auto blobs,
        group_->control().all_gather("a collective", mine, Deadline::after(options_.timeout)));
    for (std::size_t peer = 0; peer < size(); ++peer) {
      if (job.call.kind != Kind::kAllGather && peer != job.call.root) {
        continue;
      }
      if (blobs[peer].size() != bytes) {
        return {StatusCode::kInvalidArgument,
                "rank " + std::to_string(peer) + " gave " + std::to_string(blobs[peer].size()) +
                    " bytes to a collective of " + std::to_string(bytes) +
                    "; all ranks start the same collectives in the same order"};
      }
      const std::size_t at =
          job.call.kind == Kind::kAllGather ? peer * job.call.count + first : first;
      if (bytes > 0) {
        std::memcpy(job.output + at, blobs[peer].data(), bytes);
      }
    }
    first += bytes;
  } while (first < job.call.count);
  end();
  return {};
}

/// Makes the plan for a reduction, or keeps that of the one before.
Status TransportCommunicator::take_plan(const Job& job) {
  const std::size_t blocks = job.call.kind == Kind::kReduceScatter ? size() : 1;
  const std::size_t count = blocks * job.call.count;
  ByteWriter shape;
  shape.put(static_cast<std::uint64_t>(count));
  shape.put(job.call.dtype);
  shape.put(job.call.reduction);
  const std::uint64_t key = hash_bytes(shape.bytes());
  if (job.call.kind == Kind::kReduceScatter &&
      (scratch_ == nullptr || scratch_->size() < count * size_of(job.call.dtype))) {
    STRETTO_TRY_ASSIGN(scratch_, device_->allocate(count * size_of(job.call.dtype)));
  }
  if (planned_ && key == plan_key_) {
    return {};
  }
  STRETTO_TRY_ASSIGN(
      const auto shapes,
      group_->control().all_gather(
          "a collective of another shape", shape.bytes(), Deadline::after(options_.timeout)));
  for (std::size_t peer = 0; peer < size(); ++peer) {
    if (shapes[peer] != shape.bytes()) {
      return {StatusCode::kInvalidArgument,
              "rank " + std::to_string(peer) + " started a collective of another shape than the " +
                  std::to_string(count) + " elements of rank " + std::to_string(rank()) +
                  "; all ranks start the same collectives in the same order"};
    }
  }
  const std::size_t piece = std::max<std::size_t>(
      options_.chunk_bytes_for(count * size_of(job.call.dtype)) / size_of(job.call.dtype), 1);
  std::vector<spi::ChunkDescription> plan;
  chunk_elements_ = piece;
  for (std::size_t first = 0; first < count; first += piece) {
    plan.push_back(
        {BucketId{0},
         job.call.dtype,
         std::min(piece, count - first),
         job.call.reduction == Reduction::kMean ? spi::Combine::kMean : spi::Combine::kSum});
  }
  STRETTO_TRY(exchange_->configure(plan, key, 1));
  shards_ = 0;
  chunks_ = plan.size();
  for (std::size_t chunk = 0; chunk < chunks_; ++chunk) {
    shards_ += exchange_->shards_of(ChunkId{static_cast<std::uint32_t>(chunk)});
  }
  plan_key_ = key;
  planned_ = true;
  return {};
}

Status TransportCommunicator::submit() {
  const Job& job = jobs_.front();
  std::byte* const output = job.call.kind == Kind::kReduceScatter ? scratch_->data() : job.output;
  for (; next_chunk_ < chunks_; ++next_chunk_) {
    const std::size_t offset = next_chunk_ * chunk_elements_ * size_of(job.call.dtype);
    spi::ChunkSubmission submission;
    submission.step = step_;
    submission.chunk = ChunkId{static_cast<std::uint32_t>(next_chunk_)};
    submission.contribution = job.input + offset;
    submission.result = output + offset;
    submission.priority = static_cast<std::uint32_t>(next_chunk_);
    const Status status = exchange_->submit(submission);
    if (status.code() == StatusCode::kWouldBlock) {
      return {};
    }
    STRETTO_TRY(status);
  }
  return {};
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
  if (error_.is_ok()) {
    error_ = group_->control().health();
  }
  return error_;
}

}  // namespace stretto::collective

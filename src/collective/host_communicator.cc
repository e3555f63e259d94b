// SPDX-License-Identifier: Apache-2.0
#include "collective/host_communicator.hpp"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include <poll.h>
#include <sched.h>

namespace stretto::collective {
namespace {

constexpr auto kSpin = std::chrono::microseconds(100);
// A sleeper looks around this often even if nobody rings: it only bounds the harm of a missed sign.
constexpr auto kNap = std::chrono::milliseconds(500);
constexpr std::size_t kLine = 64;

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

HostCommunicator::HostCommunicator(std::shared_ptr<Group> group,
                                   const EngineOptions& options,
                                   std::unique_ptr<exchange::Host> host)
    : BaseCommunicator(std::move(group), options),
      host_(std::move(host)),
      ranks_(host_->size()),
      may_spin_(ranks_ <= std::thread::hardware_concurrency()),
      desks_(ranks_),
      peer_arenas_(ranks_),
      peers_(ranks_) {}

Result<std::unique_ptr<Communicator>> HostCommunicator::make(std::shared_ptr<Group> group,
                                                             const EngineOptions& options,
                                                             std::unique_ptr<exchange::Host> host,
                                                             Deadline deadline) {
  auto made = std::unique_ptr<HostCommunicator>(
      new HostCommunicator(std::move(group), options, std::move(host)));
  STRETTO_TRY(made->build(deadline));
  return made;
}

Status HostCommunicator::build(Deadline deadline) {
  const std::size_t bytes = sizeof(Desk) + stage_bytes() + kSlots * kPieceBytes;
  auto own = exchange::Mapping::create(bytes, exchange::Mapping::Touch::kNow);
  const Status ready = own ? Status() : own.error();
  const exchange::Mapping* const pages = own ? &*own : nullptr;
  STRETTO_TRY_ASSIGN(
      auto got,
      host_->share(ready, {&pages, own ? 1U : 0U}, exchange::Mapping::Touch::kNow, deadline));
  for (std::size_t peer = 0; peer < ranks_; ++peer) {
    if (peer != rank()) {
      if (got[peer].memory.size() != 1 || got[peer].memory[0].size() != bytes) {
        return {StatusCode::kCorruptWire,
                "rank " + std::to_string(peer) + " is of another version of Stretto"};
      }
      desks_[peer] = std::move(got[peer].memory[0]);
    }
  }
  desks_[rank()] = std::move(*own);
  auto pipes =
      exchange::Mapping::create(Pipes::bytes_for(ranks_), exchange::Mapping::Touch::kLater);
  const exchange::Mapping* const area = pipes ? &*pipes : nullptr;
  STRETTO_TRY_ASSIGN(auto areas,
                     host_->share(pipes ? Status() : pipes.error(),
                                  {&area, pipes ? 1U : 0U},
                                  exchange::Mapping::Touch::kLater,
                                  deadline));
  std::vector<exchange::Mapping> by_rank(ranks_);
  for (std::size_t peer = 0; peer < ranks_; ++peer) {
    by_rank[peer] = peer == rank() ? std::move(*pipes) : std::move(areas[peer].memory.at(0));
  }
  pipes_.emplace(rank(), std::move(by_rank));
  if (ranks_ > spi::kMaxSources) {
    accumulator_.resize(kBiteBytes / 2);
  }
  return {};
}

Result<std::unique_ptr<spi::Buffer>> HostCommunicator::allocate(std::size_t bytes) {
  STRETTO_TRY(error_);
  auto made = arenas_.make(bytes);
  const Status ready = made ? Status() : made.error();
  const exchange::Arenas::News news = arenas_.news();
  auto got = host_->share(ready,
                          news.to_hand_over(),
                          exchange::Mapping::Touch::kNow,
                          Deadline::after(group_->options().timeout),
                          news.gone);
  if (!got) {
    return fail(located(got.error()));
  }
  arenas_.told(news);
  for (std::size_t peer = 0; peer < ranks_; ++peer) {
    peer_arenas_[peer].take(std::move((*got)[peer].memory), (*got)[peer].gone);
  }
  return made;
}

std::uint64_t HostCommunicator::start(const Job& job) {
  const std::size_t bytes = job.call.count * job.call.width();
  const bool scatters = job.call.kind == Kind::kReduceScatter;
  const bool gathers = job.call.kind == Kind::kAllGather;
  Note note;
  note.number = ++issued_;
  note.call = job.call;
  // Without bytes there is nothing to stage or to take.
  const auto input = arenas_.place_of(job.input, scatters ? ranks_ * bytes : bytes);
  note.input_file = input.file;
  note.input_offset = input.offset;
  const auto output = arenas_.place_of(job.output, gathers ? ranks_ * bytes : bytes);
  note.output_file = output.file;
  note.output_offset = output.offset;
  started_.push_back({job, note});
  if (!begun_) {
    begin();
  }
  return issued_;
}

/// Tells the others what the first job is.
void HostCommunicator::begin() {
  const std::size_t piece = kPieceBytes / width();
  std::size_t largest = 0;
  for (std::size_t owner = 0; owner < ranks_; ++owner) {
    largest = std::max(largest, block(owner).count);
  }
  rounds_ = std::max<std::size_t>((largest + piece - 1) / piece, 1);
  begun_ = true;
  desk(rank()).notes[note().number & 1U] = note();
  // What lies in an arena is staged as it is; the note tells where.
  if (note().input_file != 0 || !sums()) {
    staged_ = base_ + rounds_;
    publish(&Desk::staged, staged_);
  }
  // What the owners write to its place, nobody has to take from their slots.
  if (note().output_file != 0 || !distributes()) {
    taken_ = base_ + rounds_;
    publish(&Desk::taken, taken_);
  }
}

std::uint64_t HostCommunicator::start_send(const std::byte* data,
                                           std::size_t bytes,
                                           std::size_t peer) {
  return pipes_->send(data, bytes, peer);
}

std::uint64_t HostCommunicator::start_receive(std::byte* data,
                                              std::size_t bytes,
                                              std::size_t peer) {
  return pipes_->receive(data, bytes, peer);
}

bool HostCommunicator::ended(std::uint64_t number) const noexcept {
  return MessageNumber::is_message(number) ? pipes_->ended(number) : ended_ >= number;
}

bool HostCommunicator::advance_to(std::uint64_t number) {
  while (!ended(number) && error_.is_ok() && advance()) {
  }
  return ended(number) || !error_.is_ok();
}

Status HostCommunicator::wait_for(std::uint64_t number, Deadline deadline) {
  std::size_t turns = 0;
  TimePoint spin_until{};
  while (!advance_to(number)) {
    pause();
    if (++turns % 32 != 0) {
      continue;
    }
    const TimePoint now = Clock::now();
    if (turns == 32) {
      spin_until = now + kSpin;
    }
    if (may_spin_ && now < spin_until) {
      // A peer that was woken from this core may sit behind this very loop.
      static_cast<void>(host_->leave_shared_core(now));
      static_cast<void>(::sched_yield());
      continue;
    }
    turns = 0;
    if (now >= deadline.when()) {
      return not_ended(number);
    }
    STRETTO_TRY(sleep(deadline));
  }
  return ended(number) ? Status() : error_;
}

Status HostCommunicator::sleep(Deadline deadline) {
  host_->arm();
  if (!advance() && error_.is_ok()) {
    std::array<pollfd, 2> descriptors{
        {{host_->descriptor(), POLLIN, 0}, {host_->control().descriptor(), POLLIN, 0}}};
    const auto wait = std::min<std::chrono::nanoseconds>(deadline.left(), kNap);
    timespec timeout{};
    timeout.tv_nsec = static_cast<long>(wait.count());
    static_cast<void>(::ppoll(descriptors.data(), descriptors.size(), &timeout, nullptr));
  }
  host_->disarm();
  if (error_.is_ok()) {
    error_ = host_->control().health();
  }
  return error_;
}

HostCommunicator::Block HostCommunicator::block(std::size_t owner) const noexcept {
  const std::size_t count = job().call.count;
  switch (job().call.kind) {
    case Kind::kAllReduce: {
      const std::size_t unit = kLine / width();
      const std::size_t share = (count / ranks_ + unit) / unit * unit;
      const std::size_t first = std::min(owner * share, count);
      return {first, first, std::min(share, count - first)};
    }
    case Kind::kReduceScatter:
      return {owner * count, 0, count};
    case Kind::kAllGather:
      return {0, owner * count, count};
    case Kind::kBroadcast:
      return {0, 0, owner == job().call.root ? count : 0};
    case Kind::kBarrier:
      break;
  }
  return {};
}

HostCommunicator::Desk& HostCommunicator::desk(std::size_t rank) const noexcept {
  return *std::launder(reinterpret_cast<Desk*>(desks_[rank].data()));
}

std::byte* HostCommunicator::stage_slot(std::size_t rank,
                                        std::uint64_t round,
                                        std::size_t owner) const noexcept {
  return desks_[rank].data() + sizeof(Desk) + ((round % kSlots) * ranks_ + owner) * kPieceBytes;
}

std::byte* HostCommunicator::result_slot(std::size_t rank, std::uint64_t round) const noexcept {
  return desks_[rank].data() + sizeof(Desk) + stage_bytes() + (round % kSlots) * kPieceBytes;
}

}  // namespace stretto::collective

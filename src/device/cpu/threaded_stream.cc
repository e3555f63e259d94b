// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/threaded_stream.hpp"

#include "base/system_error.hpp"
#include "kernels/kernels.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace stretto::device {
namespace {

/// Less than this is not worth waking another worker (some 10 us) for.
constexpr std::size_t kSmallestPartBytes = std::size_t{64} << 10;
/// Parts begin at multiples of this, so that no two workers write one cache line.
constexpr std::size_t kCacheLine = 64;
constexpr std::chrono::microseconds kSpin{50};
/// Idle workers look around so often even if nobody wakes them.
constexpr std::chrono::seconds kLongestSleep{10};
/// A worker that waits for another stream's event notices so soon that it is to stop.
constexpr std::chrono::milliseconds kWaitSlice{10};

const Status& ring_is_full() {
  static const Status kFull(StatusCode::kWouldBlock,
                            "the CPU stream has as much work as it can hold; poll events, repeat");
  return kFull;
}

Status foreign_event() {
  return {StatusCode::kInvalidArgument,
          "an event of another device was recorded on a CPU stream; make it with make_event() of "
          "the stream's device"};
}

std::size_t part_count(const spi::Operation& operation, std::size_t workers) {
  if (operation.kind == spi::Operation::Kind::kCall) {
    return 1;
  }
  const std::size_t bytes = operation.element_count * size_of(operation.dtype);
  return std::clamp<std::size_t>(bytes / kSmallestPartBytes, 1, workers);
}

spi::Operation part_of(const spi::Operation& operation, std::size_t index, std::size_t parts) {
  const std::size_t line = kCacheLine / size_of(operation.dtype);
  const std::size_t lines = (operation.element_count + line - 1) / line;
  const auto border = [&](std::size_t part) {
    return std::min(lines * part / parts * line, operation.element_count);
  };
  return kernels::slice(operation, border(index), border(index + 1) - border(index));
}

inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Result<std::unique_ptr<spi::Stream>> ThreadedStream::make(std::size_t threads) {
  FileDescriptor wake_up(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake_up.is_open()) {
    return fail(system_error("cannot make an eventfd for a CPU stream"));
  }
  auto stream = std::make_unique<ThreadedStream>(std::move(wake_up));
  STRETTO_TRY(stream->start(threads));
  return stream;
}

ThreadedStream::ThreadedStream(FileDescriptor wake_up)
    : wake_up_(std::move(wake_up)), ring_(kCapacity) {}

ThreadedStream::~ThreadedStream() {
  stopping_.store(true, std::memory_order_seq_cst);
  idle_.notify();
  for (auto& worker : workers_) {
    worker.join();
  }
}

Status ThreadedStream::start(std::size_t threads) {
  // Spinning helps only where a processor would otherwise idle: with the poster's and one to spare.
  spins_ = std::thread::hardware_concurrency() > threads + 1;
  workers_.reserve(threads);
  threads_ = threads;
  try {
    for (std::size_t i = 0; i < threads; ++i) {
      workers_.emplace_back([this] { work(); });
      ::pthread_setname_np(workers_.back().native_handle(), "stretto-cpu");
    }
  } catch (const std::system_error& error) {
    return {StatusCode::kUnavailable,
            "cannot start " + std::to_string(threads) + " threads for a CPU stream: " +
                error.what() + "; raise the limit (ulimit -u), or ask for fewer"};
  }
  return {};
}

bool ThreadedStream::full() const noexcept {
  // Acquire: pairs with the store in finish(); who sees the room sees that its entry is done with.
  const std::uint64_t head = taken_.load(std::memory_order_acquire) >> kPartBits;
  return tail_.load(std::memory_order_relaxed) - head == kCapacity;
}

void ThreadedStream::publish(std::size_t parts) noexcept {
  tail_entry().parts.store(static_cast<std::uint32_t>(parts), std::memory_order_relaxed);
  // Sequentially consistent, as is the count of who waits: either this sees that nobody is awake,
  // or the worker that goes to sleep sees the entry.  One that is awake comes back to the ring.
  tail_.store(tail_.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  if (idle_.waiting() == threads_) {
    idle_.notify_one();
  }
}

Status ThreadedStream::post(const spi::Operation& operation) {
  STRETTO_TRY(kernels::validate(operation));
  if (full()) {
    return ring_is_full();
  }
  Entry& entry = tail_entry();
  entry.kind = Entry::Kind::kOperation;
  entry.operation = operation;
  publish(part_count(operation, threads_));
  return {};
}

Status ThreadedStream::record(spi::Event& event) {
  auto* own_event = dynamic_cast<CpuEvent*>(&event);
  if (own_event == nullptr) {
    return foreign_event();
  }
  if (full()) {
    return ring_is_full();
  }
  Entry& entry = tail_entry();
  entry.kind = Entry::Kind::kRecord;
  entry.event = &event;
  entry.own_event = own_event;
  entry.ticket = own_event->record();
  publish(1);
  return {};
}

Status ThreadedStream::wait_for(spi::Event& event) {
  if (full()) {
    return ring_is_full();
  }
  Entry& entry = tail_entry();
  entry.kind = Entry::Kind::kWait;
  entry.event = &event;
  entry.own_event = dynamic_cast<CpuEvent*>(&event);
  entry.ticket = entry.own_event != nullptr ? entry.own_event->last_record() : 0;
  publish(1);
  return {};
}

void ThreadedStream::drain() noexcept {
  // Whoever raises the flag behind this look writes, and wakes this thread again.
  if (!signalled_.load(std::memory_order_relaxed)) {
    return;
  }
  // Read first: a worker that completes an event in between finds the flag still set and does not
  // write, but then this thread has not asked that event yet and will find it done.  Nothing to
  // read yet: the worker that raised the flag is about to write; the flag stays up till then.
  std::uint64_t count = 0;
  if (::read(wake_up_.get(), &count, sizeof count) == sizeof count) {
    // Acquire and release: pairs with complete().
    signalled_.exchange(false, std::memory_order_acq_rel);
  }
}

void ThreadedStream::work() noexcept {
  Part part;
  while (take(part) && perform(part)) {
    finish(part);
    spin_for_work();
  }
}

bool ThreadedStream::has_part(std::uint64_t taken) const noexcept {
  const std::uint64_t head = taken >> kPartBits;
  // Sequentially consistent: pairs with publish(); who sees the number sees the entry.
  return head != tail_.load(std::memory_order_seq_cst) &&
         (taken & kPartMask) < entry(head).parts.load(std::memory_order_relaxed);
}

bool ThreadedStream::take(Part& part) noexcept {
  while (!stopping_.load(std::memory_order_relaxed)) {
    // Acquire: pairs with finish(); who takes a part sees what all entries before have done.
    std::uint64_t taken = taken_.load(std::memory_order_acquire);
    while (has_part(taken)) {
      if (taken_.compare_exchange_weak(taken, taken + 1, std::memory_order_acq_rel)) {
        part = {taken >> kPartBits, static_cast<std::uint32_t>(taken & kPartMask)};
        return true;
      }
    }
    idle_.wait(
        [this] {
          return stopping_.load(std::memory_order_relaxed) ||
                 has_part(taken_.load(std::memory_order_acquire));
        },
        Deadline::after(kLongestSleep));
  }
  return false;
}

bool ThreadedStream::perform(const Part& part) noexcept {
  const Entry& work = entry(part.entry);
  switch (work.kind) {
    case Entry::Kind::kOperation: {
      const std::uint32_t parts = work.parts.load(std::memory_order_relaxed);
      if (part.index == 0 && parts > 1) {
        idle_.notify();  // the others
      }
      kernels::run(part_of(work.operation, part.index, parts));
      return true;
    }
    case Entry::Kind::kRecord:
      complete(work);
      return true;
    case Entry::Kind::kWait:
      return wait_at(work);
  }
  return true;
}

/// Waits for another stream's event.
bool ThreadedStream::wait_at(const Entry& work) noexcept {
  const auto over = [&] {
    return work.own_event != nullptr ? work.own_event->completed(work.ticket) : work.event->done();
  };
  while (!over()) {
    if (stopping_.load(std::memory_order_relaxed)) {
      return false;
    }
    if (work.own_event != nullptr) {
      work.own_event->wait_until(work.ticket, Clock::now() + kWaitSlice);
    } else {
      static_cast<void>(work.event->wait(Deadline::after(kWaitSlice)));
    }
  }
  return true;
}

void ThreadedStream::complete(const Entry& work) noexcept {
  work.own_event->complete(work.ticket);
  // Acquire and release: pairs with drain().  Either this finds the flag down and writes, or the
  // owner, who takes it down before asking events, sees this one done.
  if (!signalled_.exchange(true, std::memory_order_acq_rel)) {
    const std::uint64_t one = 1;
    static_cast<void>(::write(wake_up_.get(), &one, sizeof one));
  }
}

/// Whoever does the last part lets everyone go on to the next entry.
void ThreadedStream::finish(const Part& part) noexcept {
  const std::uint32_t parts = entry(part.entry).parts.load(std::memory_order_relaxed);
  if (parts > 1) {
    // Acquire and release: the last one sees what all the others have written, and hands it on.
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 < parts) {
      return;
    }
    done_.store(0, std::memory_order_relaxed);
  }
  // Nobody can raise it now: all parts are taken.  This worker looks at the next entry itself.
  taken_.store((part.entry + 1) << kPartBits, std::memory_order_release);
}

void ThreadedStream::spin_for_work() const noexcept {
  if (!spins_) {
    return;
  }
  const auto end = Clock::now() + kSpin;
  while (!has_part(taken_.load(std::memory_order_acquire)) && Clock::now() < end) {
    relax();
  }
}

}  // namespace stretto::device

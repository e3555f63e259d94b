// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/threaded_stream.hpp"

#include "kernels/kernels.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
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
/// A worker that waits for another stream's event notices so soon that it shall stop.
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
    return fail(StatusCode::kUnavailable,
                std::string("cannot make an eventfd for a CPU stream: ") + std::strerror(errno) +
                    "; raise the limit of open files (ulimit -n)");
  }
  auto stream = std::make_unique<ThreadedStream>(std::move(wake_up));
  STRETTO_TRY(stream->start(threads));
  return stream;
}

ThreadedStream::ThreadedStream(FileDescriptor wake_up)
    : wake_up_(std::move(wake_up)), ring_(kCapacity) {}

ThreadedStream::~ThreadedStream() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    work_.notify_all();
  }
  for (auto& worker : workers_) {
    worker.join();
  }
}

Status ThreadedStream::start(std::size_t threads) {
  // Spinning helps only where a processor would otherwise idle: with the poster's and one to spare.
  spins_ = std::thread::hardware_concurrency() > threads + 1;
  awake_.store(threads, std::memory_order_relaxed);
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
  // Acquire: pairs with the release in pop(); who sees the room sees that its entry is done with.
  return tail_.load(std::memory_order_relaxed) - head_.load(std::memory_order_acquire) == kCapacity;
}

bool ThreadedStream::empty() const noexcept {
  return head_.load(std::memory_order_relaxed) == tail_.load(std::memory_order_seq_cst);
}

void ThreadedStream::publish() noexcept {
  // Sequentially consistent with sleep(): either this sees that nobody is awake, or the worker that
  // goes to sleep sees the entry.  A worker that is awake always comes back to the ring.
  tail_.store(tail_.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  if (awake_.load(std::memory_order_seq_cst) == 0) {
    const MutexLock lock(mutex_);
    work_.notify_one();
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
  publish();
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
  publish();
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
  publish();
  return {};
}

void ThreadedStream::drain() noexcept {
  // Read first: a worker that completes an event in between finds the flag still set and does not
  // write, but then this thread has not asked that event yet and will find it done.
  std::uint64_t count = 0;
  static_cast<void>(::read(wake_up_.get(), &count, sizeof count));
  // Acquire and release: pairs with complete().
  signalled_.exchange(false, std::memory_order_acq_rel);
}

void ThreadedStream::work() noexcept {
  Part part;
  while (take(part)) {
    if (part.blocked_on == nullptr) {
      kernels::run(part.operation);
    } else if (part.blocked_on->own_event != nullptr) {
      part.blocked_on->own_event->wait_until(part.blocked_on->ticket, Clock::now() + kWaitSlice);
    } else {
      static_cast<void>(part.blocked_on->event->wait(Deadline::after(kWaitSlice)));
    }
    finish(part);
    spin_for_work();
  }
}

bool ThreadedStream::take(Part& part) {
  const MutexLock lock(mutex_);
  while (!stopping_) {
    if (advance(part)) {
      return true;
    }
    sleep();
  }
  return false;
}

bool ThreadedStream::advance(Part& part) {
  while (!empty()) {
    const Entry& entry = ring_[head_.load(std::memory_order_relaxed) % kCapacity];
    switch (entry.kind) {
      case Entry::Kind::kRecord:
        complete(entry);
        pop();
        break;
      case Entry::Kind::kWait: {
        const bool over = entry.own_event != nullptr ? entry.own_event->completed(entry.ticket)
                                                     : entry.event->done();
        if (!over) {
          part.blocked_on = &entry;
          return !std::exchange(somebody_waits_, true);
        }
        if (somebody_waits_) {
          return false;  // who waits still looks at the entry, and will be back in a moment
        }
        pop();
        break;
      }
      case Entry::Kind::kOperation:
        if (parts_ == 0) {
          begin(entry);
        }
        if (parts_taken_ == parts_) {
          return false;
        }
        part.blocked_on = nullptr;
        part.operation = part_of(entry.operation, parts_taken_++, parts_);
        return true;
    }
  }
  return false;
}

void ThreadedStream::begin(const Entry& entry) {
  parts_ = part_count(entry.operation, threads_);
  if (parts_ > 1) {
    work_.notify_all();
  }
}

void ThreadedStream::sleep() {
  awake_.fetch_sub(1, std::memory_order_seq_cst);
  // Where the ring is not empty, the worker that has the head is awake and will go on from there.
  if (!empty() && parts_ == 0 && !somebody_waits_) {
    awake_.fetch_add(1, std::memory_order_seq_cst);
    return;
  }
  work_.wait_until(mutex_, Clock::now() + kLongestSleep);
  awake_.fetch_add(1, std::memory_order_seq_cst);
}

void ThreadedStream::finish(const Part& part) {
  const MutexLock lock(mutex_);
  if (part.blocked_on != nullptr) {
    somebody_waits_ = false;
  } else if (++parts_done_ == parts_) {
    parts_ = parts_taken_ = parts_done_ = 0;
    pop();
  }
}

void ThreadedStream::pop() {
  // Release: pairs with full().
  head_.fetch_add(1, std::memory_order_release);
}

void ThreadedStream::complete(const Entry& entry) {
  entry.own_event->complete(entry.ticket);
  // Acquire and release: pairs with drain().  Either this finds the flag down and writes, or the
  // owner, who takes it down before asking events, sees this one done.
  if (!signalled_.exchange(true, std::memory_order_acq_rel)) {
    const std::uint64_t one = 1;
    static_cast<void>(::write(wake_up_.get(), &one, sizeof one));
  }
}

void ThreadedStream::spin_for_work() const noexcept {
  if (!spins_) {
    return;
  }
  const auto end = Clock::now() + kSpin;
  while (empty() && Clock::now() < end) {
    relax();
  }
}

}  // namespace stretto::device

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"
#include "base/mutex.hpp"
#include "device/cpu/cpu_event.hpp"

#include "stretto/spi/device.hpp"
#include "stretto/status.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace stretto::device {

// One poster fills a ring; the stream's workers empty it in order.  Only the entry at the head is
// ever worked on: an operation in as many parts as pay, each part by whichever worker is free; a
// record by telling its event; a wait by one worker waiting.  The head moves on when all parts of
// it are done, so posting order is the order of effects.
//
// The poster takes no lock unless every worker sleeps.  Workers share a mutex, taken twice per
// part.

/// Does the work on threads of its own.
///
/// Threading: post, record, wait_for and drain are confined(one thread at a time posts); the rest
/// is
///            the workers'.
/// Cost:      nothing is allocated after make().
class ThreadedStream final : public spi::Stream {
 public:
  /// What can be posted and not yet done.
  static constexpr std::size_t kCapacity = 256;

  static Result<std::unique_ptr<spi::Stream>> make(std::size_t threads);
  explicit ThreadedStream(FileDescriptor wake_up);
  ~ThreadedStream() override;

  Status post(const spi::Operation& operation) override;
  Status record(spi::Event& event) override;
  Status wait_for(spi::Event& event) override;
  int descriptor() const noexcept override { return wake_up_.get(); }
  void drain() noexcept override;

 private:
  struct Entry {
    enum class Kind : std::uint8_t { kOperation, kRecord, kWait };
    Kind kind = Kind::kOperation;
    spi::Operation operation;
    spi::Event* event = nullptr;
    CpuEvent* own_event = nullptr;  ///< the same, if it is one of ours
    std::uint64_t ticket = 0;       ///< the record of own_event that is meant
  };
  /// What one worker does between two visits to the mutex.
  struct Part {
    spi::Operation operation;
    const Entry* blocked_on = nullptr;  ///< a wait that is not over; else do the operation
  };

  Status start(std::size_t threads);
  bool full() const noexcept;
  bool empty() const noexcept;
  /// Publishes the entry at the tail, which the caller has filled.
  void publish() noexcept;
  Entry& tail_entry() noexcept { return ring_[tail_.load(std::memory_order_relaxed) % kCapacity]; }

  void work() noexcept;
  /// Sleeps until there is a part to do; false: stop.
  bool take(Part& part) STRETTO_EXCLUDES(mutex_);
  bool advance(Part& part) STRETTO_REQUIRES(mutex_);
  void begin(const Entry& entry) STRETTO_REQUIRES(mutex_);
  void sleep() STRETTO_REQUIRES(mutex_);
  void finish(const Part& part) STRETTO_EXCLUDES(mutex_);
  void pop() STRETTO_REQUIRES(mutex_);
  void complete(const Entry& entry) STRETTO_REQUIRES(mutex_);
  void spin_for_work() const noexcept;

  FileDescriptor wake_up_;
  /// Whether wake_up_ was written since the last drain.
  std::atomic<bool> signalled_{false};

  std::vector<Entry> ring_;
  std::atomic<std::uint64_t> head_{0};  ///< the first entry that is not done
  std::atomic<std::uint64_t> tail_{0};  ///< one behind the last entry
  std::atomic<std::size_t> awake_{0};   ///< workers that will look at the ring once more

  Mutex mutex_;
  ConditionVariable work_;
  bool stopping_ STRETTO_GUARDED_BY(mutex_) = false;
  bool somebody_waits_ STRETTO_GUARDED_BY(mutex_) = false;  ///< for the event at the head
  // Of the operation at the head; all zero before it is begun.
  std::size_t parts_ STRETTO_GUARDED_BY(mutex_) = 0;
  std::size_t parts_taken_ STRETTO_GUARDED_BY(mutex_) = 0;
  std::size_t parts_done_ STRETTO_GUARDED_BY(mutex_) = 0;

  bool spins_ = false;
  std::size_t threads_ = 0;
  std::vector<std::thread> workers_;
};

}  // namespace stretto::device

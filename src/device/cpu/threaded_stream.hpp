// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"
#include "base/signal.hpp"
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
// Nobody takes a lock, for all this lies between a gradient and the wire.  One number says which
// entry is at the head and how many of its parts have been taken; a worker takes a part by raising
// it.  It only grows, so nobody can take a part of an entry that is gone.

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
    /// Into how many parts it goes.  Read by workers who may be late: the rest of an entry only
    /// by those who have taken a part of it, which keeps it there.
    std::atomic<std::uint32_t> parts{0};
    Kind kind = Kind::kOperation;
    spi::Operation operation;
    spi::Event* event = nullptr;
    CpuEvent* own_event = nullptr;  ///< the same, if it is one of ours
    std::uint64_t ticket = 0;       ///< the record of own_event that is meant
  };
  /// What a worker has taken.
  struct Part {
    std::uint64_t entry = 0;  ///< its number, from the first on
    std::uint32_t index = 0;
  };
  static constexpr unsigned kPartBits = 8;
  static constexpr std::uint64_t kPartMask = (std::uint64_t{1} << kPartBits) - 1;

  Status start(std::size_t threads);
  bool full() const noexcept;
  Entry& entry(std::uint64_t number) noexcept { return ring_[number % kCapacity]; }
  const Entry& entry(std::uint64_t number) const noexcept { return ring_[number % kCapacity]; }
  Entry& tail_entry() noexcept { return entry(tail_.load(std::memory_order_relaxed)); }
  /// Publishes the entry at the tail, which the caller has filled.
  void publish(std::size_t parts) noexcept;

  void work() noexcept;
  /// Sleeps until there is a part to do; false: stop.
  bool take(Part& part) noexcept;
  /// Whether there is a part to take; true once too often when it goes at this moment.
  bool has_part(std::uint64_t taken) const noexcept;
  /// False: it was told to stop before the part was done.
  bool perform(const Part& part) noexcept;
  bool wait_at(const Entry& entry) noexcept;
  void complete(const Entry& entry) noexcept;
  void finish(const Part& part) noexcept;
  void spin_for_work() const noexcept;

  FileDescriptor wake_up_;
  /// Whether wake_up_ was written since the last drain.
  std::atomic<bool> signalled_{false};

  std::vector<Entry> ring_;
  std::atomic<std::uint64_t> tail_{0};  ///< number of the entry to be posted next
  /// The number of the entry at the head, and below it how many of its parts are taken.
  std::atomic<std::uint64_t> taken_{0};
  std::atomic<std::uint32_t> done_{0};  ///< parts of the entry at the head, where it has several
  Signal idle_;                         ///< workers without work wait here
  std::atomic<bool> stopping_{false};

  bool spins_ = false;
  std::size_t threads_ = 0;
  std::vector<std::thread> workers_;
};

}  // namespace stretto::device

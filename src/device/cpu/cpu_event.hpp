// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/mutex.hpp"

#include "stretto/spi/device.hpp"

#include <atomic>
#include <cstdint>

namespace stretto::device {

/// An event of the CPU device: the last record is done once its ticket has been completed.
///
/// Threading: thread-safe.
class CpuEvent final : public spi::Event {
 public:
  ~CpuEvent() override;

  bool done() const noexcept override {
    return completed(recorded_.load(std::memory_order_acquire));
  }
  Status wait(Deadline deadline) override;

  /// Begins a new record and returns its ticket.
  std::uint64_t record() noexcept { return recorded_.fetch_add(1, std::memory_order_acq_rel) + 1; }
  /// The record that a wait posted now has to wait for.
  std::uint64_t last_record() const noexcept { return recorded_.load(std::memory_order_acquire); }
  /// Whether this record, or a later one, is done.
  bool completed(std::uint64_t ticket) const noexcept {
    // Pairs with the store in complete(): who sees the ticket sees the work before it.
    return completed_.load(std::memory_order_acquire) >= ticket;
  }
  void complete(std::uint64_t ticket) noexcept;
  /// Returns at the deadline, or when completed(ticket).
  void wait_until(std::uint64_t ticket, TimePoint when) noexcept;

 private:
  std::atomic<std::uint64_t> recorded_{0};
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<int> completing_{0};  // threads within complete()
  std::atomic<int> sleepers_{0};
  Mutex mutex_;
  ConditionVariable changed_;
};

}  // namespace stretto::device

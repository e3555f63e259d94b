// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/mutex.hpp"

#include "stretto/spi/device.hpp"

#include <atomic>

namespace stretto::testing {

/// An event that is done when a test says so.
///
/// Threading: thread-safe.
class ManualEvent final : public spi::Event {
 public:
  bool done() const noexcept override { return done_.load(std::memory_order_acquire); }
  Status wait(Deadline deadline) override {
    MutexLock lock(mutex_);
    while (!done() && !deadline.passed()) {
      finished_.wait_until(mutex_, deadline.when());
    }
    return done() ? Status() : Status(StatusCode::kDeadlineExceeded, "the event has not come");
  }
  void finish() noexcept {
    MutexLock lock(mutex_);
    done_.store(true, std::memory_order_release);
    finished_.notify_all();
  }

 private:
  std::atomic<bool> done_{false};  // read without the lock
  Mutex mutex_;
  ConditionVariable finished_;
};

}  // namespace stretto::testing

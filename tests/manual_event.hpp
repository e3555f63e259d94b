// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/device.hpp"

#include <atomic>
#include <chrono>
#include <thread>

namespace stretto::testing {

/// An event that is done when a test says so.
///
/// Threading: thread-safe.
class ManualEvent final : public spi::Event {
 public:
  bool done() const noexcept override { return done_.load(std::memory_order_acquire); }
  Status wait(Deadline deadline) override {
    while (!done() && !deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return done() ? Status() : Status(StatusCode::kDeadlineExceeded, "the event has not come");
  }
  void finish() noexcept { done_.store(true, std::memory_order_release); }

 private:
  std::atomic<bool> done_{false};
};

}  // namespace stretto::testing

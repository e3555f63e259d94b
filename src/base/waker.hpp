// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"

#include "stretto/status.hpp"

#include <atomic>

namespace stretto {

/// Wakes one sleeping thread from many others, with a system call only if it sleeps.
///
/// The sleeper: prepare(); look once more for work; if there is none, sleep on descriptor();
/// finish(). Everyone else: publish work, then wake(). Threading: wake is thread-safe; the rest is
/// confined(the sleeper).
class Waker {
 public:
  static Result<Waker> make();

  Waker(Waker&& other) noexcept
      : event_(std::move(other.event_)), asleep_(other.asleep_.load(std::memory_order_relaxed)) {}

  int descriptor() const noexcept { return event_.get(); }

  void prepare() noexcept {
    // Both sides exchange the same flag, so one of them comes second and sees what the other did
    // before: either wake() finds the sleeper, or the sleeper's next look finds the work.
    static_cast<void>(asleep_.exchange(true, std::memory_order_acq_rel));
  }
  void finish() noexcept;
  void wake() noexcept;

 private:
  explicit Waker(FileDescriptor event) : event_(std::move(event)) {}

  FileDescriptor event_;
  std::atomic<bool> asleep_{false};
};

}  // namespace stretto

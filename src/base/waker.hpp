// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"

#include "stretto/status.hpp"

#include <atomic>
#include <cstdint>

namespace stretto {

/// Wakes one sleeping thread from many others, with a system call only if it sleeps.
///
/// The sleeper: prepare(); look once more for work; if there is none, sleep on descriptor();
/// finish().  Everyone else: publish work, then wake(), or nudge() if the work can wait as long as
/// a nap: a sleeper that will look by itself in a moment need not be called.
///
/// Threading: wake and nudge are thread-safe; the rest is confined(the sleeper).
class Waker {
 public:
  static Result<Waker> make();

  Waker(Waker&& other) noexcept
      : event_(std::move(other.event_)),
        state_(other.state_.load(std::memory_order_relaxed)),
        owed_(other.owed_) {}

  int descriptor() const noexcept { return event_.get(); }

  /// How one is about to sleep.
  enum class Sleep : std::uint8_t {
    kDeep,  ///< until called, or for long
    kNap,   ///< for a moment
  };

  void prepare(Sleep sleep = Sleep::kDeep) noexcept {
    // Both sides exchange the same state, so one of them comes second and sees what the other did
    // before: either wake() finds the sleeper, or the sleeper's next look finds the work.
    static_cast<void>(
        state_.exchange(sleep == Sleep::kNap ? kNaps : kSleeps, std::memory_order_acq_rel));
  }
  void finish() noexcept;
  void wake() noexcept;
  /// Wakes a sleeper, but not from a nap.
  void nudge() noexcept;

 private:
  static constexpr std::uint8_t kAwake = 0;
  static constexpr std::uint8_t kNaps = 1;
  static constexpr std::uint8_t kSleeps = 2;

  explicit Waker(FileDescriptor event) : event_(std::move(event)) {}

  FileDescriptor event_;
  std::atomic<std::uint8_t> state_{kAwake};
  std::uint64_t owed_ = 0;  ///< wake-ups that were written, or will be, and are not read
};

}  // namespace stretto

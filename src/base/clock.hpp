// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/types.hpp"

namespace stretto {

/// Says what time it is, so that tests can decide it.
///
/// Threading: thread-safe.
class TimeSource {
 public:
  TimeSource() = default;
  TimeSource(const TimeSource&) = delete;
  TimeSource& operator=(const TimeSource&) = delete;
  virtual ~TimeSource() = default;
  virtual TimePoint now() const noexcept = 0;
};

/// The time of the system.
///
/// Threading: immutable.
class SystemClock final : public TimeSource {
 public:
  TimePoint now() const noexcept override { return Clock::now(); }
};

/// Time that stands still until a test moves it.
///
/// Threading: thread-compatible.
class ManualClock final : public TimeSource {
 public:
  TimePoint now() const noexcept override { return now_; }
  /// Moves forward; never back.
  void advance_to(TimePoint when) noexcept { now_ = when > now_ ? when : now_; }

 private:
  TimePoint now_{std::chrono::seconds(1000)};
};

}  // namespace stretto

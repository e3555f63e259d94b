// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/clock.hpp"

#include "stretto/options.hpp"
#include "stretto/types.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace stretto::transport {

/// What a message costs on a shaped link beside its payload.
constexpr std::size_t kShapedOverheadBytes = 64;

/// A shaped link in numbers.
///
/// Threading: immutable.
struct LinkShape {
  explicit LinkShape(const LinkOptions& link)
      : bytes_per_second(link.bytes_per_second), delay(link.delay) {
    if (bytes_per_second > 0) {
      fragment_bytes = std::clamp<std::size_t>(
          bytes_in(std::chrono::microseconds(100)), std::size_t{4} << 10, std::size_t{256} << 10);
      window_bytes = 16 * fragment_bytes + bytes_in(2 * delay);
    }
  }

  double bytes_per_second;
  std::chrono::nanoseconds delay;
  std::size_t fragment_bytes = SIZE_MAX;
  std::size_t window_bytes = SIZE_MAX;  ///< that may be on the way between two ranks

 private:
  std::size_t bytes_in(std::chrono::nanoseconds time) const {
    return static_cast<std::size_t>(bytes_per_second * std::chrono::duration<double>(time).count());
  }
};

/// A direction of a link: what it takes to cross, and when it is free.
///
/// Threading: thread-compatible.
class Pipe {
 public:
  explicit Pipe(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}
  std::chrono::nanoseconds time_of(std::size_t bytes) const {
    if (bytes_per_second_ <= 0) {
      return std::chrono::nanoseconds(0);
    }
    // Rounded up: never faster than the link.
    return std::chrono::nanoseconds(
        static_cast<std::int64_t>(std::ceil(static_cast<double>(bytes) * 1e9 / bytes_per_second_)));
  }
  TimePoint free_at() const { return free_at_; }
  /// Carries bytes that are there from `ready` on; says when the last one is across.
  TimePoint carry(TimePoint ready, std::size_t bytes) {
    free_at_ = std::max(free_at_, ready) + time_of(bytes);
    return free_at_;
  }

 private:
  double bytes_per_second_;
  TimePoint free_at_{};
};

}  // namespace stretto::transport

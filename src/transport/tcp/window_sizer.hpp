// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/types.hpp"

#include <chrono>
#include <cstddef>

namespace stretto::transport {

/// How many bytes of one peer should be on their way.
///
/// Too few, and the path idles while this side is about to ask for more; too many, and they only
/// wait in somebody's queue, where nothing urgent can overtake them and the tail of a step waits
/// behind them.  With r the rate at which bytes come, t the round trip of the idle path and w what
/// it takes to wake a process,
///     window = floor + r (2 t + w)
/// which grows by itself where the window was what limited r, and stays near the floor where the
/// link is.
///
/// Threading: thread-compatible.
/// Source:    the bandwidth-delay product with a filter for the rate's maximum, as in Cardwell et
///            al., "BBR: congestion-based congestion control", 2016.
class WindowSizer {
 public:
  static constexpr std::size_t kFloorBytes = std::size_t{64} << 10;
  static constexpr std::size_t kMostBytes = std::size_t{8} << 20;

  /// A window that follows the rate.
  explicit WindowSizer(std::chrono::nanoseconds round_trip)
      : round_trip_(round_trip), window_(kFloorBytes) {}
  /// One that never changes.
  explicit WindowSizer(std::size_t fixed) : fixed_(true), window_(fixed) {}

  /// Counts bytes that have come.
  void came(std::size_t bytes, TimePoint now) noexcept;
  std::size_t window() const noexcept { return window_; }

 private:
  void sample(double rate) noexcept;

  bool fixed_ = false;
  std::chrono::nanoseconds round_trip_{0};
  std::size_t window_;
  double rate_ = 0;  ///< bytes per second
  std::size_t bytes_ = 0;
  TimePoint since_{};
};

}  // namespace stretto::transport

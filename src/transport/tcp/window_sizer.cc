// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/window_sizer.hpp"

#include <algorithm>
#include <chrono>

namespace stretto::transport {
namespace {

/// From a socket that becomes readable until its thread reads it, on a machine that is busy.
constexpr auto kWake = std::chrono::microseconds(200);
// Shorter, and what a late reader finds in the system's buffer would pass for the path's rate;
// longer, and the pause before these bytes would lower it.
constexpr auto kShortest = std::chrono::milliseconds(1);
constexpr auto kLongest = std::chrono::milliseconds(50);
/// What is left of a maximum after another sample.
constexpr double kMemory = 0.99;

}  // namespace

void WindowSizer::came(std::size_t bytes, TimePoint now) noexcept {
  if (fixed_) {
    return;
  }
  const auto shortest = std::max<std::chrono::nanoseconds>(kShortest, round_trip_);
  const std::chrono::nanoseconds passed = now - since_;
  if (passed > std::max<std::chrono::nanoseconds>(kLongest, 4 * round_trip_)) {
    since_ = now;  // nothing came for long: these bytes begin a sample
    bytes_ = 0;
    return;
  }
  bytes_ += bytes;
  if (passed < shortest || bytes_ < kFloorBytes) {
    return;
  }
  sample(static_cast<double>(bytes_) / std::chrono::duration<double>(passed).count());
  since_ = now;
  bytes_ = 0;
}

void WindowSizer::sample(double rate) noexcept {
  rate_ = std::max(rate, kMemory * rate_);
  const double ahead = 2 * rate_ * std::chrono::duration<double>(round_trip_ + kWake).count();
  window_ = std::min(kFloorBytes + static_cast<std::size_t>(std::min(ahead, 1e9)), kMostBytes);
}

}  // namespace stretto::transport

// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/window_sizer.hpp"

#include <algorithm>
#include <chrono>

namespace stretto::transport {
namespace {

/// From a socket that becomes readable until its thread reads it, on a machine that is busy.
constexpr auto kWake = std::chrono::microseconds(100);
// What a late reader finds in the system's buffer comes at the rate of memory, a window of it at
// most.  Over eight round trips that adds a quarter of a window to the next one: it dies out.
// Over one it would grow without end.
constexpr int kRoundTrips = 8;
// A pause longer than this is no slowness.
constexpr auto kLongest = std::chrono::milliseconds(50);
/// What is left of a maximum after another sample.
constexpr double kMemory = 0.99;

}  // namespace

void WindowSizer::came(std::size_t bytes, TimePoint now) noexcept {
  if (fixed_) {
    return;
  }
  const std::chrono::nanoseconds shortest = kRoundTrips * (round_trip_ + kWake);
  const std::chrono::nanoseconds passed = now - since_;
  if (passed > std::max<std::chrono::nanoseconds>(kLongest, 2 * shortest)) {
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
  const double ahead = rate_ * std::chrono::duration<double>(2 * round_trip_ + kWake).count();
  window_ = std::min(kFloorBytes + static_cast<std::size_t>(std::min(ahead, 1e9)), kMostBytes);
}

}  // namespace stretto::transport

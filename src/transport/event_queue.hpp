// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/transport.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace stretto::transport {

/// Events that happened and wait for a poll with room for them.
///
/// Threading: confined(progress).
/// Cost:      allocates only while it grows to the longest queue seen.
class EventQueue {
 public:
  // Room for a burst, so that nothing is allocated between ready() and the last send.
  EventQueue() { events_.reserve(2048); }
  void reserve(std::size_t events) { events_.reserve(events); }
  bool empty() const noexcept { return head_ == events_.size(); }
  void push(const spi::TransportEvent& event) { events_.push_back(event); }

  /// Hands out as many as fit, oldest first.
  std::size_t take(std::span<spi::TransportEvent> into) {
    const std::size_t count = std::min(into.size(), events_.size() - head_);
    const auto first = events_.begin() + static_cast<std::ptrdiff_t>(head_);
    std::copy_n(first, count, into.begin());
    head_ += count;
    if (empty()) {
      events_.clear();
      head_ = 0;
    }
    return count;
  }

 private:
  std::vector<spi::TransportEvent> events_;
  std::size_t head_ = 0;
};

}  // namespace stretto::transport

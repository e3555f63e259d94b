// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.hpp"

#include <cstddef>
#include <vector>

namespace stretto::exchange {

/// A first-in-first-out queue that allocates once.
///
/// Threading: thread-compatible.
template <typename T>
class FixedRing {
 public:
  explicit FixedRing(std::size_t capacity = 0) : items_(capacity) {}

  bool empty() const noexcept { return count_ == 0; }
  std::size_t size() const noexcept { return count_; }
  T& front() noexcept { return items_[first_]; }
  void pop() noexcept {
    first_ = first_ + 1 == items_.size() ? 0 : first_ + 1;
    --count_;
  }
  /// The capacity is the most that can be in flight, so that running out of it is a bug.
  void push(const T& item) {
    STRETTO_CHECK(count_ < items_.size());
    const std::size_t at = first_ + count_;
    items_[at < items_.size() ? at : at - items_.size()] = item;
    ++count_;
  }

 private:
  std::vector<T> items_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace stretto::exchange

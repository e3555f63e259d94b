// SPDX-License-Identifier: Apache-2.0
#include "engine/board.hpp"

#include <algorithm>

namespace stretto::engine {
namespace {

double milliseconds(TimePoint::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

void Intervals::add(Interval interval) noexcept {
  if (count_ == items_.size()) {
    items_[count_ - 1].end = interval.end;
    return;
  }
  items_[count_++] = interval;
}

double Intervals::total_ms() const noexcept {
  double total = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    total += milliseconds(items_[i].end - items_[i].begin);
  }
  return total;
}

double Intervals::overlap_ms(const Intervals& a, const Intervals& b) noexcept {
  double total = 0;
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.count_ && j < b.count_) {
    const Interval& x = a.items_[i];
    const Interval& y = b.items_[j];
    const TimePoint begin = std::max(x.begin, y.begin);
    const TimePoint end = std::min(x.end, y.end);
    if (end > begin) {
      total += milliseconds(end - begin);
    }
    (x.end < y.end ? i : j) += 1;
  }
  return total;
}

void Board::fail(const Status& status) {
  {
    MutexLock lock(mutex_);
    if (!failure_.is_ok()) {
      return;
    }
    failure_ = status;
  }
  failed.store(true, std::memory_order_release);
  changed.notify();
}

Status Board::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

}  // namespace stretto::engine

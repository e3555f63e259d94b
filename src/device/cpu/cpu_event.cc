// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/cpu_event.hpp"

namespace stretto::device {

CpuEvent::~CpuEvent() {
  // Whoever saw the ticket may destroy the event: not before complete() has left it.
  const MutexLock lock(mutex_);
}

void CpuEvent::complete(std::uint64_t ticket) noexcept {
  const MutexLock lock(mutex_);
  // Records on several streams may complete in any order; only the latest counts.
  if (completed_.load(std::memory_order_relaxed) < ticket) {
    completed_.store(ticket, std::memory_order_release);
  }
  if (sleepers_ > 0) {
    changed_.notify_all();
  }
}

void CpuEvent::wait_until(std::uint64_t ticket, TimePoint when) noexcept {
  const MutexLock lock(mutex_);
  ++sleepers_;
  while (!completed(ticket) && Clock::now() < when) {
    changed_.wait_until(mutex_, when);
  }
  --sleepers_;
}

Status CpuEvent::wait(Deadline deadline) {
  if (done()) {
    return {};
  }
  wait_until(last_record(), deadline.when());
  if (!done()) {
    return {StatusCode::kDeadlineExceeded,
            "work on the CPU stream before this event was not done in time"};
  }
  return {};
}

}  // namespace stretto::device

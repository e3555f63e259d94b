// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/cpu_event.hpp"

#include <thread>

namespace stretto::device {

CpuEvent::~CpuEvent() {
  // Whoever saw the ticket may destroy the event: not before complete() has left it.
  while (completing_.load(std::memory_order_acquire) > 0) {
    std::this_thread::yield();
  }
}

/// Takes no lock unless somebody sleeps: it runs between ready() and the last send.
void CpuEvent::complete(std::uint64_t ticket) noexcept {
  // Before the ticket is published, so that whoever sees the ticket sees this too.
  completing_.fetch_add(1, std::memory_order_relaxed);
  // Records on several streams may complete in any order; only the latest counts.
  std::uint64_t before = completed_.load(std::memory_order_relaxed);
  while (before < ticket &&
         !completed_.compare_exchange_weak(before, ticket, std::memory_order_seq_cst)) {
  }
  // Sequentially consistent with wait_until: either this sees the sleeper, or it sees the ticket.
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    const MutexLock lock(mutex_);
    changed_.notify_all();
  }
  completing_.fetch_sub(1, std::memory_order_release);
}

void CpuEvent::wait_until(std::uint64_t ticket, TimePoint when) noexcept {
  const MutexLock lock(mutex_);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (completed_.load(std::memory_order_seq_cst) < ticket && Clock::now() < when) {
    changed_.wait_until(mutex_, when);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
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

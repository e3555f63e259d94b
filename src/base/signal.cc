// SPDX-License-Identifier: Apache-2.0
#include "base/signal.hpp"

#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace stretto {

std::uint32_t Signal::enter() noexcept {
  // Pairs with wake: both are read-modify-writes, so one of the two threads sees the other.
  waiting_.fetch_add(1, std::memory_order_seq_cst);
  return version_.load(std::memory_order_seq_cst);
}

void Signal::leave() noexcept {
  waiting_.fetch_sub(1, std::memory_order_relaxed);
}

void Signal::sleep(std::uint32_t seen, Deadline deadline) noexcept {
  const auto left = deadline.left();
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(left.count() / 1'000'000'000);
  timeout.tv_nsec = static_cast<long>(left.count() % 1'000'000'000);
  static_cast<void>(
      ::syscall(SYS_futex, &version_, FUTEX_WAIT_PRIVATE, seen, &timeout, nullptr, 0));
}

void Signal::wake(int threads) noexcept {
  version_.fetch_add(1, std::memory_order_seq_cst);
  if (waiting() > 0) {
    static_cast<void>(
        ::syscall(SYS_futex, &version_, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0));
  }
}

void Signal::notify() noexcept {
  wake(INT_MAX);
}

void Signal::notify_one() noexcept {
  wake(1);
}

}  // namespace stretto

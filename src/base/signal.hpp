// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/types.hpp"

#include <atomic>
#include <cstdint>

namespace stretto {

/// Wakes waiting threads without a lock; costs the other side nothing while nobody waits.
///
/// Threading: thread-safe.
class Signal {
 public:
  /// Says that something changed, to all who wait.
  void notify() noexcept;
  /// Says so to one of them, and asks the system to wake it even if one has just been woken.
  void notify_one() noexcept;
  /// How many threads wait, or are about to.  Whoever changes something (sequentially consistent)
  /// and then does not count a thread here can be sure that it looks at its condition once more.
  std::uint32_t waiting() const noexcept { return waiting_.load(std::memory_order_seq_cst); }

  /// Blocks until `condition()` holds or the deadline; returns whether it holds.
  template <typename Condition>
  bool wait(Condition condition, Deadline deadline) noexcept {
    while (!condition()) {
      const std::uint32_t seen = enter();
      // Looked at again after entering: a notify from here on changes `version_`.
      const bool holds = condition();
      if (!holds && !deadline.passed()) {
        sleep(seen, deadline);
      }
      leave();
      if (!holds && deadline.passed()) {
        return condition();
      }
    }
    return true;
  }

 private:
  std::uint32_t enter() noexcept;
  void sleep(std::uint32_t seen, Deadline deadline) noexcept;
  void leave() noexcept;
  void wake(int threads) noexcept;

  std::atomic<std::uint32_t> version_{0};
  std::atomic<std::uint32_t> waiting_{0};
};

}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/status.hpp"

#include <atomic>
#include <cstddef>
#include <string_view>

namespace stretto {

/// Named places where a test can have a rank killed, stopped or slowed down (docs/testing.md lists
/// them).  Which one says the environment:
///     STRETTO_FAULT="chunk.launched@5"             SIGKILL at the fifth pass of that place
///     STRETTO_FAULT="chunk.launched@5:stop"        SIGSTOP instead
///     STRETTO_FAULT="chunk.launched@5:delay=20ms"  from the fifth pass on each takes longer
///     STRETTO_FAULT_RANK=1                       on this rank only; must be set
///
/// Threading: thread-safe, but arm_fault only while nobody passes a place.
namespace fault_detail {
extern std::atomic<bool> armed;
void pass(std::string_view name, std::size_t rank) noexcept;
}  // namespace fault_detail

/// One relaxed load unless a fault is armed.
inline void fault_point(std::string_view name, std::size_t rank) noexcept {
  if (fault_detail::armed.load(std::memory_order_relaxed)) [[unlikely]] {
    fault_detail::pass(name, rank);
  }
}

/// What the environment does at start, for tests within one process; an empty text disarms.
Status arm_fault(std::string_view text, std::size_t rank);

/// How often the armed place has been passed on the armed rank.
std::size_t fault_passes() noexcept;

}  // namespace stretto

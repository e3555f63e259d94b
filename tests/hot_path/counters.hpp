// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace stretto::testing {

/// Counts what the whole process asks of the allocator and of mutexes within a window.  The thread
/// of the control connections is left out: it sends a heartbeat a second and is on no gradient's
/// way.
///
/// counters.cc puts its own malloc, free and pthread_mutex_lock in front of the C library's, so it
/// belongs in one binary and not in a sanitizer's.
struct Counters {
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t locks = 0;
};

void start_counting() noexcept;
Counters stop_counting() noexcept;
/// Prints where the first few allocations and locks came from, for addr2line.
void print_places();

}  // namespace stretto::testing

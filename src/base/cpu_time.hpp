// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <time.h>

namespace stretto {

/// Processor seconds of the calling thread.
inline double thread_cpu_seconds() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace stretto

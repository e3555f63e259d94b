// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/types.hpp"

#include <chrono>

namespace stretto::cli {

/// Computes by sleeping: the processor is as free as it is while an accelerator works.
///
/// It sleeps to moments of an absolute clock, so that late wake-ups do not add up, as they would
/// not on an accelerator that has its own queue.  After a wait inside Stretto the clock goes on
/// from now: what was lost stays lost.
///
/// Threading: confined(training thread).
class VirtualAccelerator {
 public:
  /// Sets the clock to now; what was put off is dropped, so call finish before.
  void restart();
  /// Sleeps for one layer.  Layers of less than 50 us are put off and slept with the next.
  void compute(std::chrono::nanoseconds time);
  /// Says that the thread was held up for so long: the clock moves on by as much.
  void hold(std::chrono::nanoseconds time);
  /// Sleeps what was put off.  Returns what all since restart took, less what it was held up.
  std::chrono::nanoseconds finish();

 private:
  void sleep_to_clock();

  TimePoint begin_{};
  TimePoint clock_{};
  std::chrono::nanoseconds owed_{0};
  std::chrono::nanoseconds held_{0};
};

/// Lets the calling thread wake up to the microsecond; the system's default is 50 us late.
void ask_for_precise_sleep() noexcept;

}  // namespace stretto::cli

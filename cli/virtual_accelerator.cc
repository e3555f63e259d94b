// SPDX-License-Identifier: Apache-2.0
#include "virtual_accelerator.hpp"

#include <cerrno>
#include <ctime>

#include <sys/prctl.h>

namespace stretto::cli {
namespace {

constexpr std::chrono::nanoseconds kShortest = std::chrono::microseconds(50);

}  // namespace

void VirtualAccelerator::restart() {
  begin_ = Clock::now();
  clock_ = begin_;
  owed_ = std::chrono::nanoseconds(0);
  held_ = std::chrono::nanoseconds(0);
}

void VirtualAccelerator::compute(std::chrono::nanoseconds time) {
  owed_ += time;
  if (owed_ >= kShortest) {
    sleep_to_clock();
  }
}

void VirtualAccelerator::hold(std::chrono::nanoseconds time) {
  clock_ += time;
  held_ += time;
}

std::chrono::nanoseconds VirtualAccelerator::finish() {
  sleep_to_clock();
  return Clock::now() - begin_ - held_;
}

void VirtualAccelerator::sleep_to_clock() {
  clock_ += owed_;
  owed_ = std::chrono::nanoseconds(0);
  // steady_clock is CLOCK_MONOTONIC.
  const auto since = clock_.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  timespec until{};
  until.tv_sec = static_cast<std::time_t>(seconds.count());
  until.tv_nsec = static_cast<long>(std::chrono::nanoseconds(since - seconds).count());
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

void ask_for_precise_sleep() noexcept {
  static_cast<void>(::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL));
}

}  // namespace stretto::cli

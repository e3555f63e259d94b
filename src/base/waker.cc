// SPDX-License-Identifier: Apache-2.0
#include "base/waker.hpp"

#include "base/system_error.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

#include <sys/eventfd.h>

namespace stretto {

Result<Waker> Waker::make() {
  FileDescriptor event(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!event.is_open()) {
    return fail(system_error("cannot make an eventfd"));
  }
  return Waker(std::move(event));
}

void Waker::finish() noexcept {
  if (state_.exchange(kAwake, std::memory_order_acq_rel) == kAwake) {
    ++owed_;
  }
  std::uint64_t count = 0;
  // Who woke us may not have come to its write yet; then a later finish() takes it.
  if (owed_ > 0 && ::read(event_.get(), &count, sizeof count) == sizeof count) {
    owed_ -= std::min(owed_, count);
  }
}

void Waker::wake() noexcept {
  // Pairs with the exchange in prepare().
  if (state_.exchange(kAwake, std::memory_order_acq_rel) != kAwake) {
    const std::uint64_t one = 1;
    static_cast<void>(::write(event_.get(), &one, sizeof one));
  }
}

void Waker::nudge() noexcept {
  // A load might see a nap that is over by the time the work can be seen; this is ordered with
  // prepare() like the exchange in wake().
  if (state_.fetch_or(0, std::memory_order_acq_rel) == kSleeps) {
    wake();
  }
}

}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
#include "base/waker.hpp"

#include "base/system_error.hpp"

#include <cerrno>
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
  state_.store(kAwake, std::memory_order_relaxed);
  std::uint64_t count = 0;
  // Fails with EAGAIN if nobody woke us; that is as good.
  static_cast<void>(::read(event_.get(), &count, sizeof count));
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

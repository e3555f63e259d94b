// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/health_bell.hpp"

#include "base/system_error.hpp"

#include <cstdint>
#include <string>

#include <sys/eventfd.h>

namespace stretto::rendezvous {

Result<HealthBell> HealthBell::make() {
  FileDescriptor event(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!event.is_open()) {
    return fail(system_error("cannot make an eventfd"));
  }
  return HealthBell(std::move(event));
}

HealthBell::HealthBell(HealthBell&& other) noexcept
    : event_(std::move(other.event_)), bad_(other.bad_.load(std::memory_order_relaxed)) {}

Status HealthBell::health() const {
  if (!is_bad()) {
    return {};
  }
  MutexLock lock(mutex_);
  return status_;
}

void HealthBell::ring(const Status& status) {
  MutexLock lock(mutex_);
  if (!status_.is_ok()) {
    return;
  }
  status_ = status;
  bad_.store(true, std::memory_order_release);
  const std::uint64_t one = 1;
  static_cast<void>(::write(event_.get(), &one, sizeof one));
}

}  // namespace stretto::rendezvous

// SPDX-License-Identifier: Apache-2.0
#include "transport/inproc/hub.hpp"

#include "base/system_error.hpp"

#include <string>

#include <sys/eventfd.h>
#include <unistd.h>

namespace stretto::transport {

Status Mailbox::open() {
  event_ = FileDescriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!event_.is_open()) {
    return system_error("transport inproc cannot make an eventfd");
  }
  return Status::ok();
}

void Mailbox::signal() {
  if (!signalled_) {
    signalled_ = true;
    const std::uint64_t one = 1;
    static_cast<void>(::write(event_.get(), &one, sizeof one));
  }
}

void Mailbox::put(const Letter& letter) {
  MutexLock lock(mutex_);
  if (!shut_) {
    letters_.push_back(letter);
    signal();
  }
}

void Mailbox::take(std::vector<Letter>& into) {
  MutexLock lock(mutex_);
  letters_.swap(into);
}

void Mailbox::settle(bool owner_has_work) {
  MutexLock lock(mutex_);
  if (owner_has_work || !letters_.empty()) {
    signal();
  } else if (signalled_) {
    signalled_ = false;
    std::uint64_t count = 0;
    static_cast<void>(::read(event_.get(), &count, sizeof count));
  }
}

void Mailbox::shut() {
  MutexLock lock(mutex_);
  shut_ = true;
  letters_.clear();
}

Result<std::shared_ptr<Hub>> Hub::make(std::size_t size) {
  std::shared_ptr<Hub> hub(new Hub(size));
  for (Mailbox& mailbox : hub->mailboxes_) {
    STRETTO_TRY(mailbox.open());
  }
  return hub;
}

}  // namespace stretto::transport

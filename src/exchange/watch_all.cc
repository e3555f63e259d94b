// SPDX-License-Identifier: Apache-2.0
#include "exchange/watch_all.hpp"

#include "base/system_error.hpp"

#include <string>

#include <sys/epoll.h>

namespace stretto::exchange {

Result<FileDescriptor> watch_all(std::span<const int> descriptors) {
  FileDescriptor all(::epoll_create1(EPOLL_CLOEXEC));
  for (const int descriptor : descriptors) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (descriptor >= 0 && ::epoll_ctl(all.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
      return fail(system_error("cannot watch a descriptor"));
    }
  }
  return all;
}

}  // namespace stretto::exchange

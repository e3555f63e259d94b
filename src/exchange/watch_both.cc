// SPDX-License-Identifier: Apache-2.0
#include "exchange/watch_both.hpp"

#include "base/system_error.hpp"

#include <string>

#include <sys/epoll.h>

namespace stretto::exchange {

Result<FileDescriptor> watch_both(int first, int second) {
  FileDescriptor both(::epoll_create1(EPOLL_CLOEXEC));
  for (const int descriptor : {first, second}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (descriptor >= 0 && ::epoll_ctl(both.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
      return fail(system_error("cannot watch a descriptor"));
    }
  }
  return both;
}

}  // namespace stretto::exchange

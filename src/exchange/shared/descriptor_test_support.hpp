// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"
#include "exchange/shared/descriptor_socket.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace stretto::exchange {

inline std::vector<std::byte> bytes_of(const DescriptorSocket::Note& note) {
  const auto bytes = std::as_bytes(std::span(&note, 1));
  return {bytes.begin(), bytes.end()};
}

/// Sends what a process that is no rank may send to a DescriptorSocket: any bytes, with up to four
/// descriptors of its own.  Whether the system took it.
inline bool send_as_a_stranger(const DescriptorSocket::Address& to,
                               std::span<const std::byte> bytes,
                               std::size_t descriptors) {
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const FileDescriptor file(::eventfd(0, EFD_CLOEXEC));
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  std::memcpy(at.sun_path + 1, to.name.data(), std::min(to.name.size(), sizeof at.sun_path - 1));
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(4 * sizeof(int))> space{};
  msghdr message{};
  message.msg_name = &at;
  message.msg_namelen =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + to.name.size());
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptors > 0) {
    message.msg_control = space.data();
    message.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
    cmsghdr* control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
    for (std::size_t i = 0; i < descriptors; ++i) {
      const int number = file.get();
      std::memcpy(CMSG_DATA(control) + i * sizeof(int), &number, sizeof number);
    }
  }
  return ::sendmsg(socket.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

}  // namespace stretto::exchange

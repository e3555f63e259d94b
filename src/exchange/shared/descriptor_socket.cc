// SPDX-License-Identifier: Apache-2.0
#include "exchange/shared/descriptor_socket.hpp"

#include "base/log.hpp"
#include "base/random.hpp"
#include "base/system_error.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/socket.h>
#include <sys/un.h>

namespace stretto::exchange {
namespace {

using Note = DescriptorSocket::Note;
static_assert(sizeof(Note) == 24);  // as it is on the wire

struct SocketAddress {
  sockaddr_un address{};
  socklen_t length = 0;
};

/// A name in the abstract name space begins with a zero.
SocketAddress abstract_address(const std::string& name) {
  SocketAddress made;
  made.address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof made.address.sun_path - 1);
  std::memcpy(made.address.sun_path + 1, name.data(), length);
  made.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return made;
}

/// Owns every descriptor that came, so that those of a stranger are closed again.
std::vector<FileDescriptor> files_of(msghdr& message) {
  std::vector<FileDescriptor> files;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
      const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(c) + i * sizeof(int), sizeof descriptor);
        files.emplace_back(descriptor);
      }
    }
  }
  return files;
}

}  // namespace

Result<DescriptorSocket> DescriptorSocket::open(std::size_t rank) {
  DescriptorSocket made;
  made.address_.name = "stretto-" + std::to_string(random_number()) + "-" + std::to_string(rank);
  made.address_.secret = {random_number(), random_number()};
  made.socket_ = FileDescriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const SocketAddress at = abstract_address(made.address_.name);
  if (!made.socket_.is_open() ||
      ::bind(made.socket_.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) != 0) {
    return fail(system_error("cannot open a socket for the ranks of this host"));
  }
  return made;
}

Result<bool> DescriptorSocket::send(const Address& to,
                                    std::uint32_t sender,
                                    std::uint32_t round,
                                    std::span<const int> descriptors) const {
  Note note{to.secret, sender, round};
  iovec part{&note, sizeof note};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMostDescriptors * sizeof(int))> space{};
  SocketAddress at = abstract_address(to.name);
  msghdr message{};
  message.msg_name = &at.address;
  message.msg_namelen = at.length;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
  cmsghdr* control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(descriptors.size_bytes());
  std::memcpy(CMSG_DATA(control), descriptors.data(), descriptors.size_bytes());
  if (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) >= 0) {
    return true;
  }
  if (errno == EAGAIN || errno == EINTR || errno == ETOOMANYREFS) {
    return false;
  }
  return fail(StatusCode::kUnavailable, std::strerror(errno));
}

Result<DescriptorSocket::Came> DescriptorSocket::receive(const Awaited& awaited, Letter& letter) {
  Note note;
  iovec part{&note, sizeof note};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMostDescriptors * sizeof(int))> space{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  const ssize_t bytes = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
  if (bytes < 0) {
    if (errno == EAGAIN || errno == EINTR) {
      return Came::kNothing;
    }
    return fail(system_error("cannot receive memory of other ranks"));
  }
  std::vector<FileDescriptor> files = files_of(message);
  const bool whole = bytes == static_cast<ssize_t>(sizeof note) &&
                     (message.msg_flags & MSG_TRUNC) == 0 && note.secret == address_.secret &&
                     note.round == awaited.round && note.sender < awaited.descriptors.size() &&
                     awaited.descriptors[note.sender] > 0;
  const bool left_out = (message.msg_flags & MSG_CTRUNC) != 0;
  if (whole && (left_out ? files.size() < awaited.descriptors[note.sender]
                         : files.size() == awaited.descriptors[note.sender])) {
    letter = {note.sender, std::move(files)};
    return Came::kLetter;
  }
  if (refused_++ == 0) {
    log(LogLevel::kWarning,
        "a message that is of no rank of this job came to the socket of this host's ranks; it and "
        "others like it are refused");
  }
  return Came::kRefused;
}

}  // namespace stretto::exchange

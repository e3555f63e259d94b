// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/socket.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

namespace stretto::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string system_text(int error) {
  return std::strerror(error);
}

void switch_on(int descriptor, int level, int option) {
  const int on = 1;
  static_cast<void>(::setsockopt(descriptor, level, option, &on, sizeof on));
}

FileDescriptor make_socket(int family) {
  return FileDescriptor(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

SocketAddress any_address(int family, std::uint16_t port) {
  SocketAddress address;
  if (family == AF_INET6) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_addr = in6addr_any;
    v6->sin6_port = htons(port);
    address.length = sizeof(sockaddr_in6);
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
    v4->sin_family = AF_INET;
    v4->sin_addr.s_addr = htonl(INADDR_ANY);
    v4->sin_port = htons(port);
    address.length = sizeof(sockaddr_in);
  }
  return address;
}

/// Returns the socket, or closed with errno set.
FileDescriptor listen_at(const SocketAddress& address) {
  FileDescriptor listener = make_socket(address.storage.ss_family);
  if (!listener.is_open()) {
    return {};
  }
  // Without it a port stays taken for a minute after a job that closed its connections first.
  switch_on(listener.get(), SOL_SOCKET, SO_REUSEADDR);
  if (address.storage.ss_family == AF_INET6) {
    const int off = 0;
    static_cast<void>(::setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
  }
  if (::bind(listener.get(), address.get(), address.length) != 0 ||
      ::listen(listener.get(), 512) != 0) {
    const int error = errno;
    listener.reset();
    errno = error;
  }
  return listener;
}

/// A socket whose retried connect met itself: possible if the port is one that the system hands
/// out for outgoing connections and nobody listens there yet.
bool connected_to_itself(int descriptor) {
  sockaddr_storage mine{};
  sockaddr_storage theirs{};
  socklen_t mine_length = sizeof mine;
  socklen_t theirs_length = sizeof theirs;
  return ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&mine), &mine_length) == 0 &&
         ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&theirs), &theirs_length) == 0 &&
         mine_length == theirs_length && std::memcmp(&mine, &theirs, mine_length) == 0;
}

}  // namespace

bool SocketAddress::is_loopback() const noexcept {
  if (storage.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr) != 0;
  }
  return (ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24) == 127;
}

Result<std::vector<SocketAddress>> resolve(const std::string& host,
                                           std::uint16_t port,
                                           Deadline deadline) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  const Deadline give_up(std::min(deadline.when(), Clock::now() + seconds(5)));
  while (true) {
    addrinfo* list = nullptr;
    const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
    if (error == 0) {
      std::vector<SocketAddress> addresses;
      for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
        SocketAddress address;
        if (entry->ai_addrlen <= sizeof address.storage) {
          std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
          address.length = entry->ai_addrlen;
          addresses.push_back(address);
        }
      }
      return addresses;
    }
    if (error != EAI_AGAIN || give_up.passed()) {
      return fail(StatusCode::kUnavailable,
                  "MASTER_ADDR='" + host + "' does not resolve (" + ::gai_strerror(error) +
                      "); set MASTER_ADDR to the address of the host of rank 0, for example "
                      "10.0.0.1");
    }
    static_cast<void>(::poll(nullptr, 0, 200));  // the name service asked to be asked again
  }
}

Result<FileDescriptor> listen_for_ranks(const std::string& host,
                                        std::uint16_t port,
                                        Deadline deadline) {
  STRETTO_TRY_ASSIGN(const auto addresses, resolve(host, port, deadline));
  // A host's own name resolves to 127.0.1.1 on Debian though others reach it from outside.
  const bool numeric_or_local =
      host == "localhost" || host.find_first_not_of("0123456789.:") == std::string::npos;
  FileDescriptor listener;
  if (numeric_or_local && !addresses.empty() && addresses.front().is_loopback()) {
    listener = listen_at(addresses.front());
  } else {
    listener = listen_at(any_address(AF_INET6, port));
    if (!listener.is_open() && errno != EADDRINUSE) {  // a host without IPv6
      listener = listen_at(any_address(AF_INET, port));
    }
  }
  if (listener.is_open()) {
    return listener;
  }
  const int error = errno;
  if (error == EADDRINUSE) {
    return fail(StatusCode::kUnavailable,
                "port " + std::to_string(port) +
                    " on this host is taken (another job?); set MASTER_PORT to a free one");
  }
  return fail(StatusCode::kUnavailable,
              "rank 0 cannot listen on port " + std::to_string(port) + ": " + system_text(error) +
                  "; set MASTER_PORT to a port that this user may open");
}

bool is_open_to_others(int listener) noexcept {
  SocketAddress address;
  address.length = sizeof address.storage;
  return ::getsockname(listener, reinterpret_cast<sockaddr*>(&address.storage), &address.length) ==
             0 &&
         !address.is_loopback();
}

Result<FileDescriptor> connect_to(const SocketAddress& address, Deadline deadline) {
  FileDescriptor socket = make_socket(address.storage.ss_family);
  if (!socket.is_open()) {
    return fail(StatusCode::kUnavailable, "cannot make a socket: " + system_text(errno));
  }
  if (::connect(socket.get(), address.get(), address.length) != 0) {
    if (errno != EINPROGRESS) {
      return fail(StatusCode::kUnavailable, system_text(errno));
    }
    if (!wait_ready(socket.get(), Direction::kOut, deadline)) {
      return fail(StatusCode::kUnavailable, "no answer");
    }
    int error = 0;
    socklen_t length = sizeof error;
    static_cast<void>(::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length));
    if (error != 0) {
      return fail(StatusCode::kUnavailable, system_text(error));
    }
  }
  if (connected_to_itself(socket.get())) {
    return fail(StatusCode::kUnavailable, "nobody listens there");
  }
  switch_on(socket.get(), IPPROTO_TCP, TCP_NODELAY);
  return socket;
}

bool wait_ready(int descriptor, Direction direction, Deadline deadline) {
  pollfd entry{.fd = descriptor,
               .events = static_cast<short>(direction == Direction::kIn ? POLLIN : POLLOUT),
               .revents = 0};
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline.left()).count();
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(left, 1 << 30)));
    if (ready > 0) {
      return true;
    }
    if (deadline.passed()) {
      return false;
    }
  }
}

Result<std::uint16_t> find_free_port() {
  std::random_device random;
  for (int attempt = 0; attempt < 200; ++attempt) {
    const auto port = static_cast<std::uint16_t>(20000 + random() % 12000);
    if (listen_at(any_address(AF_INET, port)).is_open()) {
      return port;
    }
  }
  return fail(StatusCode::kUnavailable,
              "no free port found between 20000 and 32000; set MASTER_PORT to one");
}

}  // namespace stretto::rendezvous

// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/listener.hpp"

#include <cerrno>
#include <cstring>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace stretto::transport {

Status prepare_socket(int socket, const SocketOptions& options) {
  const int one = 1;
  // Small frames must not wait for the answer to others; failing costs speed only.
  static_cast<void>(::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
  if (options.unsent_bytes > 0) {
    const int unsent = static_cast<int>(options.unsent_bytes);
    static_cast<void>(::setsockopt(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent));
  }
  if (!options.congestion.empty() &&
      ::setsockopt(socket,
                   IPPROTO_TCP,
                   TCP_CONGESTION,
                   options.congestion.data(),
                   static_cast<socklen_t>(options.congestion.size())) != 0) {
    return {StatusCode::kUnavailable,
            "the system refuses congestion control '" + options.congestion + "': " +
                std::strerror(errno) + "; see /proc/sys/net/ipv4/tcp_allowed_congestion_control"};
  }
  return {};
}

Result<Listener> Listener::open(const SocketAddress& address) {
  const auto refused = [&](const char* what) {
    return fail(StatusCode::kUnavailable,
                std::string("cannot ") + what + " " + address.to_string() + ": " +
                    std::strerror(errno) + "; choose another port or interface");
  };
  FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) {
    return refused("make a socket for");
  }
  const int one = 1;
  // A port whose last user has just ended is free; one that somebody listens on is not.
  static_cast<void>(::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
  if (::bind(socket.get(), address.data(), address.size()) != 0) {
    return refused("bind to");
  }
  if (::listen(socket.get(), 1024) != 0) {
    return refused("listen on");
  }
  STRETTO_TRY_ASSIGN(const SocketAddress bound, SocketAddress::of(socket.get()));
  return Listener(std::move(socket), bound);
}

FileDescriptor Listener::accept(std::string& from) const {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  FileDescriptor socket(::accept4(
      socket_.get(), reinterpret_cast<sockaddr*>(&storage), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.is_open()) {
    const auto address = SocketAddress::from(reinterpret_cast<const sockaddr*>(&storage));
    from = address ? address->to_string() : "an unknown address";
  }
  return socket;
}

}  // namespace stretto::transport

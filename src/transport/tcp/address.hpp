// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/status.hpp"

#include <cstdint>
#include <string>
#include <string_view>

#include <sys/socket.h>

namespace stretto::transport {

/// An IPv4 or IPv6 address with a port.
///
/// Threading: thread-compatible.
class SocketAddress {
 public:
  SocketAddress() = default;

  /// Reads a numeric address, "10.0.0.2" or "fd00::2".
  ///
  /// Errors: kInvalidArgument.
  static Result<SocketAddress> parse(const std::string& address, std::uint16_t port);
  /// What getsockname, getpeername or getifaddrs gave; other families are refused.
  static Result<SocketAddress> from(const sockaddr* address);
  /// The address to which a socket is bound.
  static Result<SocketAddress> of(int socket);

  const sockaddr* data() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const noexcept { return size_; }
  int family() const noexcept { return storage_.ss_family; }
  std::uint16_t port() const noexcept;
  void set_port(std::uint16_t port) noexcept;
  /// Without the port, as parse reads it.
  std::string host() const;
  /// "10.0.0.2:4000" or "[fd00::2]:4000".
  std::string to_string() const;

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

/// The address of this host to listen on, with port 0.
///
/// `interface` is the name or an address of an interface.  If it is empty: the address from which
/// the system would reach `route_to` (a name or an address); if that is empty too, 127.0.0.1.
///
/// Errors: kUnavailable; the text lists the interfaces that there are.
Result<SocketAddress> choose_local_address(const std::string& interface,
                                           const std::string& route_to);

}  // namespace stretto::transport

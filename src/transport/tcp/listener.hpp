// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"
#include "transport/tcp/address.hpp"

#include "stretto/status.hpp"

#include <cstddef>
#include <string>

namespace stretto::transport {

/// What a connection's socket is set to.
struct SocketOptions {
  std::size_t unsent_bytes = 0;
  std::string congestion;
};

/// Sets a connection's options; a congestion control that the system does not have is an error.
Status prepare_socket(int socket, const SocketOptions& options);

/// A port that waits for connections, without blocking.
///
/// Threading: thread-compatible.
class Listener {
 public:
  /// Errors: kUnavailable with the address and the system's reason.
  static Result<Listener> open(const SocketAddress& address);

  int descriptor() const noexcept { return socket_.get(); }
  const SocketAddress& address() const noexcept { return address_; }

  /// The next connection; not open if there is none.  `from` is set to its address.
  FileDescriptor accept(std::string& from) const;

 private:
  Listener(FileDescriptor socket, const SocketAddress& address)
      : socket_(std::move(socket)), address_(address) {}

  FileDescriptor socket_;
  SocketAddress address_;
};

}  // namespace stretto::transport

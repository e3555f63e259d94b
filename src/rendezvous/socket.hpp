// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"

#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <sys/socket.h>

namespace stretto::rendezvous {

/// An address as the system knows it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_loopback() const noexcept;
};

/// All addresses of a name.
///
/// Errors: kUnavailable names the variable and what to do.
Result<std::vector<SocketAddress>> resolve(const std::string& host,
                                           std::uint16_t port,
                                           Deadline deadline);

/// A listening socket, not blocking: on the loopback interface if `host` means this host alone,
/// else on all interfaces (the address by which others reach this host may not be its own).
///
/// Errors: kUnavailable says that the port is taken.
Result<FileDescriptor> listen_for_ranks(const std::string& host,
                                        std::uint16_t port,
                                        Deadline deadline);

/// Whether other hosts reach a listening socket.
bool is_open_to_others(int listener) noexcept;

/// A connected socket, not blocking.
///
/// Errors: kUnavailable with the system's reason: try again later.
Result<FileDescriptor> connect_to(const SocketAddress& address, Deadline deadline);

/// Waits until the descriptor is readable (or writable); false at the deadline.
enum class Direction { kIn, kOut };
bool wait_ready(int descriptor, Direction direction, Deadline deadline);

/// A port of this host that was free a moment ago, below the range from which the system takes
/// ports for outgoing connections.
Result<std::uint16_t> find_free_port();

}  // namespace stretto::rendezvous

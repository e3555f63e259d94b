// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"
#include "transport/tcp/address.hpp"
#include "transport/tcp/handshake.hpp"
#include "transport/tcp/listener.hpp"

#include "stretto/spi/control.hpp"
#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <poll.h>

namespace stretto::transport {

struct MeshOptions {
  std::chrono::milliseconds handshake_timeout{2'000};
  SocketOptions socket;
};

/// Connects one rank with all others: to those below it, from those above it.
///
/// Strangers share a bounded number of places, each for a short time; the oldest makes room, and a
/// rank that was pushed out tries again.
///
/// Threading: thread-compatible.
class Mesh {
 public:
  /// `addresses` by rank; the references outlive the mesh.
  Mesh(const Listener& listener,
       const Identity& identity,
       const std::vector<SocketAddress>& addresses,
       const MeshOptions& options);

  /// Sockets by rank; this rank's own is not open.
  ///
  /// Blocking: until all are connected, or the deadline.
  Result<std::vector<FileDescriptor>> connect(const spi::ControlPlane& control, Deadline deadline);

  /// Connections that were not let in.
  std::uint64_t refused() const noexcept { return refused_; }

 private:
  struct Attempt {
    Handshake handshake;
    FileDescriptor socket{};  ///< not open: waits until `due` to connect again
    std::string from{};
    TimePoint due{};
    bool outgoing = false;
    bool connecting = false;
    bool over = false;
  };

  std::size_t missing() const noexcept;
  void turn(Deadline deadline);
  int turn_timeout_ms(Deadline deadline) const;
  void start(Attempt& attempt);
  void retry(Attempt& attempt, std::string why);
  void accept_all();
  void make_room();
  void advance(Attempt& attempt, short events);
  bool finish_connecting(Attempt& attempt);
  bool flush(Attempt& attempt);
  bool read(Attempt& attempt);
  void conclude(Attempt& attempt);
  void drop(Attempt& attempt, std::string why);
  void expire();
  Status timed_out() const;

  const Listener& listener_;
  const Identity& identity_;
  const std::vector<SocketAddress>& addresses_;
  const MeshOptions options_;
  std::vector<FileDescriptor> sockets_;
  std::vector<Attempt> attempts_;
  std::vector<pollfd> watched_;
  std::vector<std::string> troubles_;  // by rank: why the last attempt failed
  std::string last_refusal_;
  std::uint64_t refused_ = 0;
  Status fatal_;
};

}  // namespace stretto::transport

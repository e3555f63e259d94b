// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/control.hpp"
#include "stretto/spi/transport.hpp"
#include "stretto/status.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace stretto::transport {

/// How ranks connect over TCP.
struct TcpOptions {
  std::string interface;  ///< name or address of the interface to use; empty: the way to `route_to`
  std::string route_to;   ///< the master's address; empty with `interface` empty: 127.0.0.1
  std::uint16_t first_port = 0;  ///< rank r listens on first_port + r; 0: any free port
  std::string token;             ///< must be the same on all ranks
  std::uint64_t job_id = 0;      ///< of this job; agreed by all ranks, random
  /// Bytes of one peer that may be on their way to this rank.  Larger: steadier on long paths;
  /// smaller: less waits in queues, and an urgent message overtakes sooner.  0: as the path needs
  /// (see WindowSizer).  STRETTO_WINDOW (e.g. 256k) overrides it.
  std::size_t window_bytes = 0;
  std::size_t fragment_bytes = std::size_t{64} << 10;  ///< smaller: finer interleaving, more calls
  /// Bytes that wait in the system unsent (TCP_NOTSENT_LOWAT); the same trade as the window.
  std::size_t unsent_bytes = std::size_t{128} << 10;
  std::string congestion;                     ///< "cubic", "bbr", ...; empty: as the system is set
  std::chrono::milliseconds timeout{60'000};  ///< until all ranks are connected
  std::chrono::milliseconds handshake_timeout{2'000};  ///< for one stranger to say who it is

  Status validate() const;
};

/// Connects this rank with all others; all ranks call it together.
///
/// Nothing listens any more when it returns.
/// Blocking: until all are connected, or `timeout`.
/// Ownership: `control` is used only during the call.
/// Errors:    kUnavailable for an interface, a port or an option that the system refuses;
///            kDeadlineExceeded names the ranks that are missing, with their addresses and why;
///            kInvalidArgument if ranks disagree about token, job or size; what `control` says.
Result<std::unique_ptr<spi::Transport>> make_tcp_transport(spi::ControlPlane& control,
                                                           const TcpOptions& options);

}  // namespace stretto::transport

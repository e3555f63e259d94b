// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/control.hpp"
#include "stretto/spi/transport.hpp"
#include "stretto/status.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stretto::transport {

/// How ranks connect over UCX.
struct UcxOptions {
  /// Name or address of a network interface, or UCX's name of a device ("mlx5_0:1").  Empty: UCX
  /// chooses.  UCX_NET_DEVICES overrides it.
  std::string interface;
  std::uint64_t job_id = 0;  ///< of this job; agreed by all ranks, random
  /// Bytes of one peer that may be on their way to this rank; STRETTO_WINDOW overrides it.
  std::size_t window_bytes = std::size_t{256} << 10;
  std::size_t fragment_bytes = std::size_t{64} << 10;  ///< one active message carries so much
  /// How often UCX looks whether a silent peer is there; UCX_KEEPALIVE_INTERVAL overrides it.
  std::chrono::milliseconds keepalive{1'000};
  std::chrono::milliseconds timeout{60'000};  ///< until all ranks are connected
  /// Settings of UCX's own, without "UCX_": for odd networks and for tests.
  std::vector<std::pair<std::string, std::string>> settings;

  Status validate() const;
};

/// UCX's version, or nothing if this build is without UCX.
std::optional<std::string> ucx_version();

/// Connects this rank with all others over what UCX finds: InfiniBand, RoCE, TCP.  All ranks call
/// it together.
///
/// For networks that one trusts altogether: a forged message can end the process.
///
/// Blocking:  until all are connected, or `timeout`.
/// Ownership: `control` is used only during the call.
/// Errors:    kUnsupported if this build is without UCX; kUnavailable for an interface or a setting
///            that UCX refuses; kDeadlineExceeded names the ranks that have not been heard of; what
///            `control` says.
Result<std::unique_ptr<spi::Transport>> make_ucx_transport(spi::ControlPlane& control,
                                                           const UcxOptions& options);

}  // namespace stretto::transport

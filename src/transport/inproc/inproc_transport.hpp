// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/transport.hpp"

#include <cstddef>
#include <memory>
#include <vector>

namespace stretto::transport {

/// How ranks of one process exchange messages.
struct InprocOptions {
  /// Unit of copying: a message of smaller priority overtakes after so many bytes.
  std::size_t fragment_bytes = std::size_t{64} << 10;
  /// Bytes of one peer that one poll copies at most; smaller: events come sooner, at more polls.
  std::size_t window_bytes = std::size_t{1} << 20;
  /// Messages of one pair that were announced and not yet sent; beyond it announce says
  /// kWouldBlock.  A bound on memory: a receiver that waits for a message beyond it, before it
  /// accepts an earlier one, waits for ever.
  std::size_t max_announced = 4096;

  Status validate() const;
};

/// Connects `size` ranks that are threads of this process: the reference of the Transport contract.
///
/// Payloads are copied once, by the receiver, from the sender's memory, in fragments that rotate
/// over the peers; within a peer the smallest priority goes first, then the order of acceptance.
///
/// A rank that is destroyed is lost to the others at once.  A rank that closes first finishes what
/// it accepted and what others accepted of it, and withdraws what nobody accepted.  Either way the
/// others then poll kPeerLost once: whether a rank left or died is for the control connection to
/// say.  After kPeerLost, payloads and buffers of messages with that peer are the caller's again.
///
/// Threading: each transport is confined(progress) of its own rank; together they may be on any
///            threads.  Destroying one may wait for another's copy of one fragment, never for more.
/// Errors:    kInvalidArgument; kUnavailable if the system has no eventfd left.
Result<std::vector<std::unique_ptr<spi::Transport>>> make_inproc_transports(
    std::size_t size, const InprocOptions& options = {});

}  // namespace stretto::transport

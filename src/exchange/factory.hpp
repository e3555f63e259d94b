// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/device.hpp"
#include "stretto/spi/exchange.hpp"
#include "stretto/spi/transport.hpp"

#include <cstddef>
#include <memory>

namespace stretto::exchange {

struct OwnerOptions {
  /// Chunks up to this size go in one hop from everyone to everyone, unless there are coded ones;
  /// SIZE_MAX: all of them.
  std::size_t one_hop_bytes = std::size_t{16} << 10;
  /// Room for contributions of other ranks until all are there; at least one shard is always held.
  std::size_t scratch_bytes = std::size_t{64} << 20;
  /// Where coded chunks are encoded, reduced and decoded, on so many streams; null: on the device's
  /// own kind of stream.  Outlives the exchange.
  spi::Device* coding_device = nullptr;
  std::size_t coding_streams = 1;  ///< 0 only where no chunk is coded
};

/// Each shard goes to its owner, which adds in rank order and sends the sum to all; small chunks go
/// in one hop.
///
/// Ownership: `device` outlives the exchange; `transport` is used by calls, and ends first.
/// Cost:      2 hops; 2 (P - 1) / P of the chunk's bytes sent per rank; (P - 1) times in one hop.
Result<std::unique_ptr<spi::Exchange>> make_owner_exchange(spi::Transport& transport,
                                                           spi::Device& device,
                                                           const OwnerOptions& options);

struct RingOptions {
  /// Room for sums on their way; at least one float32 shard for each rank is always held.
  std::size_t scratch_bytes = std::size_t{64} << 20;
};

/// Each rank sends to the next alone: sums go round, then results.  Adds in an order of its own.
///
/// Ownership: `device` outlives the exchange; `transport` is used by calls, and ends first.
/// Cost:      2 (P - 1) hops; 2 (P - 1) / P of the chunk's bytes sent per rank in float32, 3 (P -
/// 1)
///            / P in 16 bits.
Result<std::unique_ptr<spi::Exchange>> make_ring_exchange(spi::Transport& transport,
                                                          spi::Device& device,
                                                          const RingOptions& options);

}  // namespace stretto::exchange

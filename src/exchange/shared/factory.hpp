// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/control.hpp"
#include "stretto/spi/device.hpp"
#include "stretto/spi/exchange.hpp"

#include <chrono>
#include <cstddef>
#include <memory>

namespace stretto::exchange {

struct SharedOptions {
  std::size_t local_size = 1;                        ///< ranks that the launcher put on this host
  std::chrono::nanoseconds timeout{10'000'000'000};  ///< for the others, whenever memory is shared
};

/// Ranks of one host sum where the gradients lie, in memory that all of them map.
///
/// All ranks call it together, and all fail or all succeed.
/// Ownership: `control` and `device` outlive the exchange.
/// Errors:    kUnsupported if not all ranks are on one host, or memory is not the host's.
/// Cost:      every byte read once and written once per rank; no copy for memory of allocate_arena.
Result<std::unique_ptr<spi::Exchange>> make_shared_exchange(spi::ControlPlane& control,
                                                            spi::Device& device,
                                                            const SharedOptions& options);

}  // namespace stretto::exchange

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/device.hpp"
#include "stretto/status.hpp"

#include <cstdint>
#include <memory>

namespace stretto::device {

/// A device for tests that is as unhelpful as the contract of spi::Stream allows.
///
/// Each operation runs as early as its stream and events permit, or as late, or somewhere between;
/// the seed decides, and is part of name() so that a failing test prints it.  Until an operation
/// runs, its destination holds signalling NaNs (unless the operation, or one before it, still uses
/// what is there), and its sources are read only when it runs: so a result that is taken too early,
/// or a source that is reused too early, changes numbers.  Posting is refused now and then.  Work
/// advances only while somebody posts, asks events or waits; the descriptor is readable for as long
/// as a recorded event is not done.  Memory that is freed, or an event that is destroyed, while
/// work that names it is outstanding aborts the program with a line that says so.
Result<std::unique_ptr<spi::Device>> make_adversarial_device(std::uint64_t seed);

}  // namespace stretto::device

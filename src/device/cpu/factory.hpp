// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/device.hpp"
#include "stretto/status.hpp"

#include <cstddef>
#include <memory>

namespace stretto::device {

/// The host's processor as a device.
///
/// With 0 threads, work is done by the thread that posts it, before post returns.  With more, each
/// stream has so many threads of its own; large operations are shared among them, which changes no
/// bit.
/// Errors: kInvalidArgument for more than 64 threads.
Result<std::unique_ptr<spi::Device>> make_cpu_device(std::size_t threads);

}  // namespace stretto::device

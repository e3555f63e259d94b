// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/group.hpp"
#include "stretto/options.hpp"
#include "stretto/spi/device.hpp"
#include "stretto/spi/exchange.hpp"
#include "stretto/spi/transport.hpp"
#include "stretto/status.hpp"

#include <memory>

namespace stretto::registry {

/// Connects this rank with all others as the options say.  All ranks of the group call it together.
///
/// Blocking: until all are connected, or the group's time-out.
Result<std::unique_ptr<spi::Transport>> make_transport(Group& group, const EngineOptions& options);

/// The processor that gradients live on.
Result<std::unique_ptr<spi::Device>> make_device(const EngineOptions& options);

/// Puts another device in place of the above, for tests; nullptr takes it away.
using DeviceFactory = Result<std::unique_ptr<spi::Device>> (*)();
void replace_device_for_tests(DeviceFactory factory);

/// Where codecs run: as the above, with a thread of its own for each stream.
Result<std::unique_ptr<spi::Device>> make_coding_device();

/// All ranks call it together; "auto" means the same exchange on all of them.
///
/// Blocking:  until all have called, or the group's time-out.
/// Ownership: group and devices outlive the exchange; `coding_device` is null where nothing has a
/// codec, and makes exchanges that take none an error; transport is used by calls, and ends first.
Result<std::unique_ptr<spi::Exchange>> make_exchange(Group& group,
                                                     spi::Transport& transport,
                                                     spi::Device& device,
                                                     spi::Device* coding_device,
                                                     const EngineOptions& options);

}  // namespace stretto::registry

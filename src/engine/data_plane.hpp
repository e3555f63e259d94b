// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/error_feedback.hpp"

#include "stretto/spi/device.hpp"
#include "stretto/spi/exchange.hpp"
#include "stretto/spi/transport.hpp"

#include <memory>

namespace stretto::engine {

/// What gradients pass through.  The order of the members is the order in which they must not end:
/// other ranks read the arenas and write to the exchange's memory until the transport is gone, and
/// the exchange's work names arenas and residuals until the exchange is gone.
///
/// Threading: confined(one thread at a time).
struct DataPlane {
  std::unique_ptr<spi::Device> device;
  std::unique_ptr<spi::Device> coding_device;  ///< null where nothing has a codec
  std::unique_ptr<ErrorFeedback> feedback;     ///< the same
  std::unique_ptr<spi::Buffer> contributions;  ///< gradients
  std::unique_ptr<spi::Buffer> results;        ///< means of all ranks
  std::unique_ptr<spi::Exchange> exchange;
  std::unique_ptr<spi::Transport> transport;
};

}  // namespace stretto::engine

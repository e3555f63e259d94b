// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/control.hpp"
#include "stretto/spi/device.hpp"
#include "stretto/spi/exchange.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace stretto::exchange {

struct MpiExchangeOptions {
  std::chrono::nanoseconds timeout{10'000'000'000};  ///< for the others to have started MPI
};

/// MPI's own all-reduce.  Adds in an order of MPI's own.
///
/// All ranks call it together, and all fail or all succeed.  Starts MPI unless the program has, in
/// which case it must have asked for MPI_THREAD_MULTIPLE; a MPI that was started here is ended when
/// the program ends (library.hpp).
/// Ownership: `control` and `device` outlive the exchange.
/// Errors:    kUnsupported if built without MPI, if MPI did not start these ranks, or memory is not
/// the host's. Cost:      what MPI makes of it; float32 on the wire for every type.
Result<std::unique_ptr<spi::Exchange>> make_mpi_exchange(spi::ControlPlane& control,
                                                         spi::Device& device,
                                                         const MpiExchangeOptions& options);

/// The MPI that this build is linked with, "Open MPI v4.1.4"; nothing if it was built without.
/// Starts nothing.
std::optional<std::string> mpi_version();

}  // namespace stretto::exchange

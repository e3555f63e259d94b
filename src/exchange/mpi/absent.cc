// SPDX-License-Identifier: Apache-2.0
// In place of all else here where Stretto is built without MPI.
#include "exchange/mpi/factory.hpp"

namespace stretto::exchange {

std::optional<std::string> mpi_version() {
  return std::nullopt;
}

Result<std::unique_ptr<spi::Exchange>> make_mpi_exchange(spi::ControlPlane& /*control*/,
                                                         spi::Device& /*device*/,
                                                         const MpiExchangeOptions& /*options*/) {
  return fail(StatusCode::kUnsupported,
              "the exchange mpi was asked for, but this Stretto is built without MPI; install "
              "libopenmpi-dev and build with STRETTO_WITH_MPI=ON, or choose another exchange");
}

}  // namespace stretto::exchange

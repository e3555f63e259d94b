// SPDX-License-Identifier: Apache-2.0
// What stands in for the transport in a build without UCX.
#include "transport/ucx/factory.hpp"

namespace stretto::transport {

Status UcxOptions::validate() const {
  return {};
}

std::optional<std::string> ucx_version() {
  return std::nullopt;
}

Result<std::unique_ptr<spi::Transport>> make_ucx_transport(spi::ControlPlane& /*control*/,
                                                           const UcxOptions& /*options*/) {
  return fail(
      StatusCode::kUnsupported,
      "this Stretto was built without UCX; install libucx-dev (UCX 1.13 or newer) and build "
      "anew with STRETTO_WITH_UCX=ON, or choose the transport tcp");
}

}  // namespace stretto::transport

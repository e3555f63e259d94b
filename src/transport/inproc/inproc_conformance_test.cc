// SPDX-License-Identifier: Apache-2.0
#include "transport/inproc/inproc_transport.hpp"

#include "stretto/spi/conformance/transport_conformance.hpp"

namespace stretto::spi::conformance {
namespace {

using transport::InprocOptions;
using transport::make_inproc_transports;

TransportHarness harness(std::string name, const InprocOptions& options) {
  return {std::move(name),
          [options](std::size_t size) { return make_inproc_transports(size, options); },
          options.fragment_bytes};
}

INSTANTIATE_TEST_SUITE_P(Inproc,
                         TransportConformance,
                         testing::Values(harness("inproc", {}),
                                         harness("inproc_one_small_fragment", {4096, 4096, 4096}),
                                         harness("inproc_few_announcements",
                                                 {std::size_t{64} << 10, 1, 300})),
                         harness_name);

}  // namespace
}  // namespace stretto::spi::conformance

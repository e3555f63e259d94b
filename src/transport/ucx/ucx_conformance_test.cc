// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_test_support.hpp"

#include "stretto/spi/conformance/transport_conformance.hpp"

namespace stretto::spi::conformance {
namespace {

using transport::connected_by_ucx;
using transport::UcxOptions;

TransportHarness harness(std::string name, const UcxOptions& options) {
  return {std::move(name),
          [options](std::size_t size) { return connected_by_ucx(size, options); },
          options.fragment_bytes};
}

/// UCX announces each fragment and the receiver fetches it, as it does over RDMA.
UcxOptions by_rendezvous() {
  UcxOptions options;
  options.settings = {{"RNDV_THRESH", "1"}};
  return options;
}

UcxOptions one_small_fragment() {
  UcxOptions options;
  options.window_bytes = 4096;
  options.fragment_bytes = 4096;
  return options;
}

INSTANTIATE_TEST_SUITE_P(Ucx,
                         TransportConformance,
                         testing::Values(harness("ucx", {}),
                                         harness("ucx_rendezvous", by_rendezvous()),
                                         harness("ucx_one_small_fragment", one_small_fragment())),
                         harness_name);

}  // namespace
}  // namespace stretto::spi::conformance

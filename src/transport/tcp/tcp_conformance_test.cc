// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/tcp_test_support.hpp"

#include "stretto/spi/conformance/transport_conformance.hpp"

namespace stretto::spi::conformance {
namespace {

using transport::connected;
using transport::quick_options;
using transport::TcpOptions;

TransportHarness harness(std::string name, const TcpOptions& options) {
  return {std::move(name),
          [options](std::size_t size) { return connected(size, options); },
          options.fragment_bytes};
}

TcpOptions one_small_fragment() {
  TcpOptions options = quick_options();
  options.window_bytes = 4096;
  options.fragment_bytes = 4096;
  options.unsent_bytes = 4096;
  return options;
}

TcpOptions over_ipv6() {
  TcpOptions options = quick_options();
  options.interface = "::1";
  return options;
}

INSTANTIATE_TEST_SUITE_P(Tcp,
                         TransportConformance,
                         testing::Values(harness("tcp", quick_options()),
                                         harness("tcp_one_small_fragment", one_small_fragment()),
                                         harness("tcp_ipv6", over_ipv6())),
                         harness_name);

}  // namespace
}  // namespace stretto::spi::conformance

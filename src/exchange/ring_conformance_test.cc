// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/factory.hpp"
#include "exchange/factory.hpp"
#include "transport/inproc/inproc_transport.hpp"
#include "transport/tcp/tcp_test_support.hpp"

#include "stretto/spi/conformance/exchange_conformance.hpp"

namespace stretto::spi::conformance {
namespace {

using Transports = std::vector<std::unique_ptr<Transport>>;

ExchangeHarness harness(std::string name,
                        const exchange::RingOptions& options,
                        std::size_t threads,
                        const std::function<Result<Transports>(std::size_t)>& connect) {
  return {std::move(name), [=](std::size_t size) -> Result<std::vector<ExchangeEnd>> {
            STRETTO_TRY_ASSIGN(Transports transports, connect(size));
            std::vector<ExchangeEnd> ends(size);
            for (std::size_t r = 0; r < size; ++r) {
              ends[r].transport = std::move(transports[r]);
              STRETTO_TRY_ASSIGN(ends[r].device, device::make_cpu_device(threads));
              STRETTO_TRY_ASSIGN(
                  ends[r].exchange,
                  exchange::make_ring_exchange(*ends[r].transport, *ends[r].device, options));
            }
            return ends;
          }};
}

Result<Transports> inproc(std::size_t size) {
  return transport::make_inproc_transports(size);
}
Result<Transports> tcp(std::size_t size) {
  return transport::connected(size, transport::quick_options());
}

INSTANTIATE_TEST_SUITE_P(
    Ring,
    ExchangeConformance,
    testing::Combine(testing::Values(harness("ring", {}, 0, inproc),
                                     harness("ring_threads", {}, 2, inproc),
                                     harness("ring_least_scratch", {1}, 0, inproc),
                                     harness("ring_tcp", {}, 0, tcp)),
                     testing::ValuesIn(kExchangeSizes)),
    exchange_test_name);

}  // namespace
}  // namespace stretto::spi::conformance

// SPDX-License-Identifier: Apache-2.0
#include "transport/decorators/faulty_transport.hpp"
#include "transport/decorators/shaped_transport.hpp"
#include "transport/inproc/inproc_transport.hpp"

#include "stretto/spi/conformance/transport_conformance.hpp"

namespace stretto::spi::conformance {
namespace {

using Transports = std::vector<std::unique_ptr<Transport>>;

template <typename Wrap>
TransportHarness over_inproc(std::string name, Wrap wrap) {
  return {std::move(name), [wrap](std::size_t size) -> Result<Transports> {
            STRETTO_TRY_ASSIGN(auto transports, transport::make_inproc_transports(size));
            for (auto& inner : transports) {
              STRETTO_TRY_ASSIGN(inner, wrap(std::move(inner)));
            }
            return transports;
          }};
}

TransportHarness shaped(std::string name, const LinkOptions& link) {
  return over_inproc(std::move(name), [link](std::unique_ptr<Transport> inner) {
    return transport::make_shaped_transport(std::move(inner), link);
  });
}

TransportHarness faulty(std::string name, const transport::FaultPlan& plan) {
  return over_inproc(
      std::move(name),
      [plan](std::unique_ptr<Transport> inner) -> Result<std::unique_ptr<Transport>> {
        return transport::make_faulty_transport(std::move(inner), plan);
      });
}

// Late and in another order is still within the contract.
transport::FaultPlan reordering() {
  transport::FaultPlan plan;
  plan.seed = 11;
  plan.delay_one_in = 3;
  plan.reorder = true;
  return plan;
}

INSTANTIATE_TEST_SUITE_P(
    Decorators,
    TransportConformance,
    testing::Values(shaped("shaped_2GBps_20us", {2e9, std::chrono::microseconds(20)}),
                    shaped("shaped_delay_only", {0, std::chrono::microseconds(100)}),
                    faulty("faulty_without_faults", {}),
                    faulty("faulty_reordering", reordering())),
    harness_name);

}  // namespace
}  // namespace stretto::spi::conformance

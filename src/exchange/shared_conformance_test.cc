// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/factory.hpp"
#include "exchange/shared/factory.hpp"

#include "stretto/group.hpp"
#include "stretto/spi/conformance/exchange_conformance.hpp"

namespace stretto::spi::conformance {
namespace {

ExchangeHarness harness(std::string name, std::size_t threads) {
  return {std::move(name), [=](std::size_t size) -> Result<std::vector<ExchangeEnd>> {
            const auto groups = Group::in_process(size);
            std::vector<ExchangeEnd> ends(size);
            std::vector<Status> made(size);
            for_every_rank(size, [&](std::size_t r) {
              made[r] = [&]() -> Status {
                ends[r].group = groups[r];
                STRETTO_TRY_ASSIGN(ends[r].device, device::make_cpu_device(threads));
                exchange::SharedOptions options;
                options.local_size = groups[r]->local_size();
                STRETTO_TRY_ASSIGN(
                    ends[r].exchange,
                    exchange::make_shared_exchange(groups[r]->control(), *ends[r].device, options));
                return {};
              }();
            });
            for (const Status& status : made) {
              STRETTO_TRY(status);
            }
            return ends;
          }};
}

INSTANTIATE_TEST_SUITE_P(Shared,
                         ExchangeConformance,
                         testing::Combine(testing::Values(harness("shared", 0),
                                                          harness("shared_threads", 2)),
                                          testing::ValuesIn(kExchangeSizes)),
                         exchange_test_name);

}  // namespace
}  // namespace stretto::spi::conformance

// SPDX-License-Identifier: Apache-2.0
#include "stretto/spi/conformance/device_conformance.hpp"

#include "device/adversarial/factory.hpp"
#include "device/cpu/factory.hpp"

namespace stretto::spi {
namespace {

DeviceFactory cpu(std::size_t threads) {
  return {"cpu_" + std::to_string(threads), [=] { return device::make_cpu_device(threads); }};
}

DeviceFactory adversarial(std::uint64_t seed) {
  return {"adversarial_" + std::to_string(seed),
          [=] { return device::make_adversarial_device(seed); }};
}

INSTANTIATE_TEST_SUITE_P(
    Devices,
    DeviceConformance,
    testing::Values(
        cpu(0), cpu(1), cpu(3), adversarial(1), adversarial(2), adversarial(3), adversarial(4)),
    device_factory_name);

}  // namespace
}  // namespace stretto::spi

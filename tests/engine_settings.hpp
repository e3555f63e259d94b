// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/adversarial/factory.hpp"
#include "registry/registry.hpp"

#include "stretto/options.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::testing {

/// What the engine's tests run on.  The names of tests say it, seed and all, so that a failing one
/// can be repeated.
struct Setting {
  std::string name;
  ExchangeKind exchange = ExchangeKind::kAuto;
  std::uint64_t seed = 0;   ///< of the adversarial device, on each rank; 0: the processor instead
  std::size_t threads = 0;  ///< that copy and add
};

inline std::vector<Setting> settings() {
  return {{"cpu", ExchangeKind::kAuto},  // on one host that is shared memory
          {"cpu_owner", ExchangeKind::kOwner},
          {"cpu_threads", ExchangeKind::kAuto, 0, 2},
          {"adversarial_seed1", ExchangeKind::kAuto, 1},
          {"adversarial_seed2", ExchangeKind::kAuto, 2},
          {"adversarial_seed3_owner", ExchangeKind::kOwner, 3},
          {"adversarial_seed4_owner", ExchangeKind::kOwner, 4}};
}

inline EngineOptions options_of(const Setting& setting) {
  EngineOptions chosen;
  chosen.exchange = setting.exchange;
  chosen.reduction_threads = setting.threads;
  return chosen;
}

/// Gives engines the device of a setting, as long as it lives.
class DeviceOf {
 public:
  explicit DeviceOf(const Setting& setting) {
    if (setting.seed != 0) {
      current() = setting.seed;
      registry::replace_device_for_tests(
          +[] { return device::make_adversarial_device(current()); });
    }
  }
  ~DeviceOf() { registry::replace_device_for_tests(nullptr); }
  DeviceOf(const DeviceOf&) = delete;
  DeviceOf& operator=(const DeviceOf&) = delete;

 private:
  static std::atomic<std::uint64_t>& current() {
    static std::atomic<std::uint64_t> seed{0};
    return seed;
  }
};

/// A test that runs in every setting.
class InSetting : public ::testing::TestWithParam<Setting> {
 protected:
  static EngineOptions options() { return options_of(GetParam()); }

 private:
  DeviceOf device_{GetParam()};
};

inline std::string setting_name(const ::testing::TestParamInfo<Setting>& info) {
  return info.param.name;
}

}  // namespace stretto::testing

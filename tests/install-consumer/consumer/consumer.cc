// SPDX-License-Identifier: Apache-2.0
// A stranger's program: two ranks, as threads, over the installed engine and communicator.
#include "stretto/collective.hpp"
#include "stretto/engine.hpp"
#include "stretto/group.hpp"
#include "stretto/options.hpp"
#include "stretto/report.hpp"
#include "stretto/spi/control.hpp"
#include "stretto/spi/device.hpp"
#include "stretto/spi/exchange.hpp"
#include "stretto/spi/transport.hpp"
#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

namespace {

using stretto::Communicator;
using stretto::Engine;
using stretto::Group;
using stretto::Status;

constexpr std::size_t kElements = 1000;

/// The mean of 1 and 2, by a training step.
Status step(const std::shared_ptr<Group>& group, float& mean) {
  STRETTO_TRY_ASSIGN(auto engine, Engine::create(group, {}));
  STRETTO_TRY_ASSIGN(const auto weights,
                     engine->add_parameter({.name = "weights", .shape = {kElements}}));
  STRETTO_TRY(engine->commit());
  STRETTO_TRY(engine->begin_step({}));
  auto* gradient = reinterpret_cast<float*>(engine->gradient_slot(weights));
  std::fill_n(gradient, kElements, static_cast<float>(stretto::index_of(group->rank()) + 1));
  STRETTO_TRY(engine->ready(weights));
  STRETTO_TRY(engine->finish_step());
  mean = reinterpret_cast<const float*>(engine->result(weights))[kElements - 1];
  return engine->shutdown();
}

/// The sum of 1 and 2, by a collective.
Status add_up(const std::shared_ptr<Group>& group, float& sum) {
  STRETTO_TRY_ASSIGN(auto communicator, Communicator::create(group, {}));
  const auto mine = static_cast<float>(stretto::index_of(group->rank()) + 1);
  STRETTO_TRY_ASSIGN(auto handle,
                     communicator->all_reduce(reinterpret_cast<const std::byte*>(&mine),
                                              reinterpret_cast<std::byte*>(&sum),
                                              1,
                                              stretto::DType::kFloat32,
                                              stretto::Reduction::kSum));
  const auto deadline = stretto::Deadline::after(std::chrono::seconds(20));
  STRETTO_TRY(handle.wait(deadline));
  return communicator->close(deadline);
}

}  // namespace

int main() {
  const auto groups = Group::in_process(2);
  std::array<Status, 2> outcome;
  std::array<float, 2> mean{};
  std::array<float, 2> sum{};
  const auto work = [&](std::size_t rank) {
    outcome[rank] = step(groups[rank], mean[rank]);
    if (outcome[rank].is_ok()) {
      outcome[rank] = add_up(groups[rank], sum[rank]);
    }
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    if (!outcome[rank].is_ok() || mean[rank] != 1.5F || sum[rank] != 3.0F) {
      std::fprintf(stderr,
                   "rank %zu: %s, mean %g, sum %g\n",
                   rank,
                   outcome[rank].to_string().c_str(),
                   static_cast<double>(mean[rank]),
                   static_cast<double>(sum[rank]));
      return 1;
    }
  }
  std::puts("mean 1.5, sum 3");
  return 0;
}

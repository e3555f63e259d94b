// SPDX-License-Identifier: Apache-2.0
// The engine without any training library: each rank is a process, which averages the numbers of
// two arrays with the others.  What it is, and how to move gradients, comes from the environment:
//   build/release/cli/stretto run -n 2 --link 1gbit -- build/release/examples/hello_ranks
#include "stretto/engine.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using stretto::Engine;
using stretto::EngineOptions;
using stretto::Group;
using stretto::GroupOptions;
using stretto::ParameterId;
using stretto::Status;

constexpr std::size_t kElements = 100'000;
constexpr int kSteps = 3;

Status train() {
  // Nothing is read from the environment but here.
  STRETTO_TRY_ASSIGN(const auto joining, GroupOptions::from_environment());
  STRETTO_TRY_ASSIGN(const auto settings, EngineOptions::from_environment());
  STRETTO_TRY_ASSIGN(auto group, Group::join(joining));  // waits until all ranks are there
  STRETTO_TRY_ASSIGN(auto engine, Engine::create(group, settings));

  // In the order of the model, the same on all ranks.
  std::array<ParameterId, 2> parameters{};
  for (const std::size_t layer : {0U, 1U}) {
    STRETTO_TRY_ASSIGN(parameters[layer],
                       engine->add_parameter({.name = "layer" + std::to_string(layer) + ".weight",
                                              .shape = {kElements}}));
  }
  STRETTO_TRY(engine->commit());

  std::vector<float> gradient(kElements * parameters.size());
  for (int step = 0; step < kSteps; ++step) {
    STRETTO_TRY(engine->begin_step({}));
    for (const std::size_t layer : {1U, 0U}) {  // backward: the output layer first
      float* mine = gradient.data() + layer * kElements;
      std::fill_n(
          mine, kElements, static_cast<float>(10 * layer + stretto::index_of(group->rank())));
      // From here on it travels, while this thread goes on with the next layer.
      STRETTO_TRY(engine->ready(parameters[layer], reinterpret_cast<const std::byte*>(mine)));
    }
    STRETTO_TRY_ASSIGN(const auto report, engine->finish_step());  // the means are here
    std::printf("step %d: means %.1f and %.1f, %.2f ms, of which %.2f ms waited\n",
                step,
                *reinterpret_cast<const float*>(engine->result(parameters[0])),
                *reinterpret_cast<const float*>(engine->result(parameters[1])),
                report.step_ms,
                report.exposed_ms);
  }
  return engine->shutdown();  // all have come to the end: nobody is missed
}

}  // namespace

int main() {
  const Status status = train();
  if (!status.is_ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return 1;
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// The engine without any training library: two ranks, as threads of this process, average the
// numbers of one array.
#include "stretto/engine.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

namespace {

using stretto::Engine;
using stretto::Group;
using stretto::Status;

constexpr std::size_t kElements = 1000;
constexpr int kSteps = 3;

Status train(std::shared_ptr<Group> group, float& mean) {
  STRETTO_TRY_ASSIGN(auto engine, Engine::create(group, {}));
  STRETTO_TRY_ASSIGN(const auto weights,
                     engine->add_parameter({.name = "weights", .shape = {kElements}}));
  STRETTO_TRY(engine->commit());
  for (int step = 0; step < kSteps; ++step) {
    STRETTO_TRY(engine->begin_step({}));
    // Backward writes this rank's gradient straight into the engine's memory.
    auto* gradient = reinterpret_cast<float*>(engine->gradient_slot(weights));
    std::fill_n(gradient, kElements, static_cast<float>(stretto::index_of(group->rank()) + 1));
    STRETTO_TRY(engine->ready(weights));  // from here on it travels
    STRETTO_TRY(engine->finish_step());   // now the mean of all ranks is here
    mean = *reinterpret_cast<const float*>(engine->result(weights));
  }
  return engine->shutdown();
}

}  // namespace

int main() {
  const auto groups = Group::in_process(2);
  std::vector<Status> outcome(groups.size());
  std::vector<float> mean(groups.size());
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < groups.size(); ++rank) {
    ranks.emplace_back([&, rank] { outcome[rank] = train(groups[rank], mean[rank]); });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
  for (std::size_t rank = 0; rank < groups.size(); ++rank) {
    if (!outcome[rank].is_ok()) {
      std::fprintf(stderr, "rank %zu: %s\n", rank, outcome[rank].to_string().c_str());
      return 1;
    }
    std::printf("rank %zu: the mean of 1 and 2 is %.1f\n", rank, mean[rank]);
  }
  return 0;
}

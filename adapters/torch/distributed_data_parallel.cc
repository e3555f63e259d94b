// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"
#include "replica.hpp"
#include "tensors.hpp"

#include <utility>

namespace stretto::libtorch {

std::shared_ptr<Group> join() {
  auto options = GroupOptions::from_environment();
  throw_if_failed(options ? Status::ok() : options.error());
  if (options->size > 1) {
    set_log_rank(options->rank);
  }
  auto group = Group::join(*options);
  throw_if_failed(group ? Status::ok() : group.error());
  return std::move(*group);
}

DistributedDataParallel::DistributedDataParallel(std::shared_ptr<Group> group,
                                                 torch::nn::Module& module,
                                                 DistributedDataParallelOptions options) {
  if (group == nullptr) {
    refuse("DistributedDataParallel needs a group: make one with stretto::libtorch::join()");
  }
  if (options.environment == Environment::kRead) {
    auto chosen = EngineOptions::from_environment(options.engine);
    throw_if_failed(chosen ? Status::ok() : chosen.error());
    options.engine = std::move(*chosen);
  }
  implementation_ = std::make_shared<Implementation>(std::move(group), module, options);
  auto engine = Engine::create(implementation_->group, options.engine);
  throw_if_failed(engine ? Status::ok() : engine.error());
  implementation_->engine = std::move(*engine);
  implementation_->register_tensors();
  if (options.start_values == StartValues::kBroadcast) {
    implementation_->give_start_values();
  }
  Implementation::attach(implementation_);
}

DistributedDataParallel::~DistributedDataParallel() {
  if (implementation_ != nullptr) {
    implementation_->release_gradients();
  }
}

void DistributedDataParallel::begin_step(const StepOptions& options) {
  implementation_->begin_step(options);
}

StepReport DistributedDataParallel::finish_step() {
  return implementation_->finish_step();
}

void DistributedDataParallel::follow_until_all_ended(torch::optim::Optimizer& optimizer) {
  while (true) {
    optimizer.zero_grad();
    implementation_->begin_step({.samples = 0, .ended = true});
    const StepReport report = implementation_->finish_step();
    // Nobody had samples in the very last step, so there is nothing to update with.
    if (report.samples > 0) {
      optimizer.step();
    }
    if (report.all_ended) {
      return;
    }
  }
}

void DistributedDataParallel::check_replicas() {
  implementation_->check_replicas();
}

void DistributedDataParallel::shutdown() {
  throw_if_failed(implementation_->engine->shutdown());
}

Engine& DistributedDataParallel::engine() noexcept {
  return *implementation_->engine;
}

}  // namespace stretto::libtorch

// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"
#include "replica.hpp"
#include "tensors.hpp"

#include <utility>

#include <torch/optim/sgd.h>

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

namespace {

/// A gradient in which the codec has already summed up the past must not be summed up again.
void refuse_momentum(const torch::optim::Optimizer* optimizer) {
  if (optimizer == nullptr) {
    refuse(
        "the codec keeps the momentum: name the optimizer in "
        "DistributedDataParallelOptions::optimizer, so that it can be checked");
  }
  const auto* sgd = dynamic_cast<const torch::optim::SGD*>(optimizer);
  if (sgd == nullptr) {
    refuse(
        "the codec keeps the momentum, which only goes with torch::optim::SGD: take that "
        "optimizer, or the codec without momentum=");
  }
  for (const auto& group : sgd->param_groups()) {
    const auto& chosen = static_cast<const torch::optim::SGDOptions&>(group.options());
    if (chosen.momentum() != 0) {
      refuse("the codec keeps the momentum, and the optimizer SGD has one too (" +
             std::to_string(chosen.momentum()) +
             "): set the optimizer's to 0, or take the codec without momentum=");
    }
  }
}

}  // namespace

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
  if (implementation_->engine->codec_owns_momentum()) {
    refuse_momentum(options.optimizer);
  }
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

void DistributedDataParallel::save_residuals(const std::string& prefix, std::uint64_t step) const {
  throw_if_failed(implementation_->engine->save_residuals(prefix, step));
}

RestoredResiduals DistributedDataParallel::load_residuals(const std::string& prefix,
                                                          std::uint64_t step,
                                                          std::size_t world_size) {
  auto restored = implementation_->engine->load_residuals(prefix, step, world_size);
  throw_if_failed(restored ? Status::ok() : restored.error());
  return std::move(*restored);
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

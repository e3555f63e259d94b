// SPDX-License-Identifier: Apache-2.0
// One step, from the first gradient that autograd produces to the mean that the optimizer reads.
#include "replica.hpp"
#include "tensors.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

namespace stretto::libtorch {

void DistributedDataParallel::Implementation::begin_step(const StepOptions& step) {
  if (step.backward_passes == 0) {
    give_up("a step of 0 backward passes: say at least 1");
  }
  const MutexLock lock(begin_mutex_);
  if (begun_.load(std::memory_order_acquire)) {
    give_up("begin_step comes before the first backward of a step; this one has begun already");
  }
  // Autograd itself adds up several passes, so the engine sees one.
  throw_if_failed(
      engine->begin_step({.samples = step.samples, .backward_passes = 1, .ended = step.ended}));
  backward_passes_ = step.backward_passes;
  ended_ = step.ended;
  begun_.store(true, std::memory_order_release);
}

void DistributedDataParallel::Implementation::begin_if_needed() {
  if (begun_.load(std::memory_order_acquire)) {
    return;
  }
  // Backward may run on several threads, whose first gradients come at the same time.
  const MutexLock lock(begin_mutex_);
  if (!begun_.load(std::memory_order_acquire)) {
    throw_if_failed(engine->begin_step({}));
    begun_.store(true, std::memory_order_release);
  }
}

void DistributedDataParallel::Implementation::appeared(std::size_t index) {
  begin_if_needed();
  Gradient& gradient = gradients_[index];
  const auto passes = gradient.appeared.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (passes == backward_passes_) {
    send(gradient);
  } else if (passes > backward_passes_) {
    give_up("parameter '" + gradient.name + "' got a gradient " + std::to_string(passes) +
            " times in step " + std::to_string(engine->step()) + ", but was sent after " +
            std::to_string(backward_passes_) +
            ": say begin_step({.backward_passes = ...}) before the first backward, or call "
            "finish_step after each");
  }
}

void DistributedDataParallel::Implementation::send(Gradient& gradient) {
  at::Tensor value = gradient.parameter.grad();
  if (!value.defined()) {
    return;  // backward reached the parameter without a gradient: unused
  }
  if (value.layout() != c10::kStrided) {
    give_up("parameter '" + gradient.name +
            "' has a sparse gradient, which is not exchanged: use a dense one (for an embedding, "
            "sparse(false))");
  }
  const auto& spec = engine->parameter(gradient.id);
  if (value.scalar_type() != scalar_type_of(spec.dtype) || !value.device().is_cpu() ||
      value.sizes() != gradient.parameter.sizes()) {
    give_up("the gradient of parameter '" + gradient.name +
            "' has another type, shape or device than the parameter");
  }
  if (!value.is_contiguous()) {
    const at::NoGradGuard no_grad;
    value = value.detach().contiguous();
  }
  gradient.sent = value;
  throw_if_failed(engine->ready(gradient.id, memory_of(value)));
  sent_[sent_count_.fetch_add(1, std::memory_order_relaxed)].store(&gradient,
                                                                   std::memory_order_release);
  release_taken();
}

/// Gives back the memory of gradients that the engine has copied, so that backward's next ones find
/// warm memory: held until the end of the step, they would cost a page fault for each 4 KiB.
void DistributedDataParallel::Implementation::release_taken() {
  if (releasing_.exchange(true, std::memory_order_acquire)) {
    return;  // another thread is at it
  }
  while (released_count_ < sent_.size()) {
    Gradient* const gradient = sent_[released_count_].load(std::memory_order_acquire);
    if (gradient == nullptr || !engine->taken(gradient->id)) {
      break;
    }
    gradient->sent.reset();
    at::Tensor& now = gradient->parameter.mutable_grad();
    if (now.defined() && !now.is_same(gradient->mean)) {
      now.reset();
    }
    ++released_count_;
  }
  releasing_.store(false, std::memory_order_release);
}

void DistributedDataParallel::Implementation::send_rest() {
  for (auto& gradient : gradients_) {
    const auto passes = gradient.appeared.load(std::memory_order_acquire);
    if (passes > 0 && passes < backward_passes_) {
      send(gradient);
    }
  }
}

void DistributedDataParallel::Implementation::send_buffers() {
  if (ended_ && options.buffers == Buffers::kAverage) {
    return;  // a rank that saw no data has no say in the mean
  }
  const auto now = buffers_now();
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].sent = now[i].detach().contiguous();
    throw_if_failed(engine->ready(buffers_[i].id, memory_of(buffers_[i].sent)));
  }
}

void DistributedDataParallel::Implementation::take_means() {
  for (auto& sent : sent_) {
    sent.store(nullptr, std::memory_order_relaxed);
  }
  sent_count_.store(0, std::memory_order_relaxed);
  released_count_ = 0;
  for (auto& gradient : gradients_) {
    gradient.appeared.store(0, std::memory_order_relaxed);
    gradient.sent.reset();
    if (!engine->used_by_any(gradient.id)) {
      continue;
    }
    std::byte* const memory = engine->result(gradient.id);
    if (!gradient.mean.defined() || memory_of(gradient.mean) != memory) {
      gradient.mean = at::from_blob(
          memory,
          gradient.parameter.sizes(),
          [keep = engine](void*) {},
          at::TensorOptions(gradient.parameter.scalar_type()));
    } else {
      // Whoever saved the last mean for a backward of his own is told that it has changed.
      gradient.mean.unsafeGetTensorImpl()->bump_version();
    }
    gradient.parameter.mutable_grad() = gradient.mean;
  }
}

void DistributedDataParallel::Implementation::take_buffers() {
  if (buffers_.empty()) {
    return;
  }
  const at::NoGradGuard no_grad;
  const auto now = buffers_now();
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].sent.reset();
    const bool is_own = options.buffers == Buffers::kBroadcast && group->rank() == Rank{0};
    if (!is_own && engine->used_by_any(buffers_[i].id)) {
      now[i].copy_(at::from_blob(
          engine->result(buffers_[i].id), now[i].sizes(), at::TensorOptions(now[i].scalar_type())));
    }
  }
}

StepReport DistributedDataParallel::Implementation::finish_step() {
  check_module();
  begin_if_needed();
  send_rest();
  send_buffers();
  auto report = engine->finish_step();
  throw_if_failed(report ? Status::ok() : report.error());
  take_means();
  take_buffers();
  backward_passes_ = 1;
  ended_ = false;
  begun_.store(false, std::memory_order_release);
  const auto every = options.engine.check_replicas_every;
  if (every > 0 && group->size() > 1 && report->step % every == 0) {
    // The optimizer has not run yet: these are the weights that this step's forward read.
    check_replicas();
  }
  return *report;
}

void DistributedDataParallel::Implementation::release_gradients() noexcept {
  const at::NoGradGuard no_grad;
  for (auto& gradient : gradients_) {
    at::Tensor& now = gradient.parameter.mutable_grad();
    if (!now.defined() || !gradient.mean.defined() || now.data_ptr() != gradient.mean.data_ptr()) {
      continue;
    }
    try {
      now = now.detach().clone();
    } catch (const std::exception&) {
      now.reset();  // no memory: a gradient less is better than a destructor that throws
    }
  }
}

void DistributedDataParallel::Implementation::check_replicas() {
  const ContiguousValues values(exchanged_values());
  throw_if_failed(engine->check_replicas(values.constant_memory()));
}

}  // namespace stretto::libtorch

// SPDX-License-Identifier: Apache-2.0
#include "replica.hpp"

#include "base/byte_order.hpp"
#include "base/hash.hpp"
#include "tensors.hpp"

#include <algorithm>
#include <functional>
#include <set>
#include <span>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace stretto::libtorch {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

/// What one control message may carry, well under the control plane's 64 MiB.
constexpr std::size_t kSmallBytes = std::size_t{16} << 20;

const void* identity_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl();
}

std::string type_of(const at::Tensor& tensor) {
  return std::string(c10::toString(tensor.scalar_type()));
}

bool is_exchanged_buffer(const at::Tensor& tensor) {
  return tensor.numel() > 0 && exchanged_type(tensor).has_value();
}

/// Refuses by name what cannot be exchanged.
void check_parameter(const std::string& name, const at::Tensor& parameter) {
  if (!exchanged_type(parameter)) {
    refuse("parameter '" + name + "' has the type " + type_of(parameter) +
           "; float32, float16 and bfloat16 can be exchanged: convert it, or freeze it with "
           "requires_grad_(false)");
  }
  if (parameter.layout() != c10::kStrided || !parameter.device().is_cpu()) {
    refuse("parameter '" + name + "' is not a dense tensor in the processor's memory (it is on " +
           parameter.device().str() + "); this build exchanges no others");
  }
}

/// Calls the replica, if it still lives, when a gradient has been accumulated.
class Hook final : public torch::autograd::FunctionPostHook {
 public:
  explicit Hook(std::function<void()> call) : call_(std::move(call)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    call_();
    return outputs;
  }

 private:
  std::function<void()> call_;
};

}  // namespace

DistributedDataParallel::Implementation::Implementation(
    std::shared_ptr<Group> joined,
    torch::nn::Module& trained,
    const DistributedDataParallelOptions& chosen)
    : group(std::move(joined)),
      module_owner(trained.weak_from_this().lock()),
      module(trained),
      options(chosen) {}

void DistributedDataParallel::Implementation::register_tensors() {
  register_parameters();
  register_buffers();
  throw_if_failed(engine->commit());
}

void DistributedDataParallel::Implementation::register_parameters() {
  std::set<const void*> known;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    Seen seen{item.key(), identity_of(parameter), parameter.requires_grad(), nullptr};
    // Tied parameters appear under several names; the first one speaks for all.
    if (parameter.requires_grad() && parameter.numel() > 0 && known.insert(seen.identity).second) {
      check_parameter(item.key(), parameter);
      auto& gradient = gradients_.emplace_front();
      gradient.name = item.key();
      gradient.parameter = parameter;
      gradient.accumulator = torch::autograd::impl::grad_accumulator(parameter);
      seen.gradient = &gradient;
    }
    seen_.push_back(std::move(seen));
  }
  // The last layer's gradients appear first, so this order puts neighbours in time side by side.
  for (auto& gradient : gradients_) {
    auto id = engine->add_parameter(
        {gradient.name, shape_of(gradient.parameter), *exchanged_type(gradient.parameter)});
    throw_if_failed(id ? Status::ok() : id.error());
    gradient.id = *id;
  }
  sent_ = std::vector<std::atomic<Gradient*>>(gradients_.size());
}

void DistributedDataParallel::Implementation::register_buffers() {
  const auto named = module.named_buffers();
  buffer_count_ = named.size();
  if (options.buffers == Buffers::kLocal) {
    return;
  }
  const Rule rule = options.buffers == Buffers::kBroadcast ? Rule::kRootValue : Rule::kRankMean;
  for (const auto& item : named) {
    if (is_exchanged_buffer(item.value())) {
      auto id = engine->add_parameter({.name = "buffer " + item.key(),
                                       .shape = shape_of(item.value()),
                                       .dtype = *exchanged_type(item.value()),
                                       .rule = rule});
      throw_if_failed(id ? Status::ok() : id.error());
      buffers_.push_back({item.key(), *id, {}});
    }
  }
}

void DistributedDataParallel::Implementation::give_start_values() {
  ContiguousValues values(exchanged_values());
  throw_if_failed(engine->broadcast(values.memory()));
  values.written();
  // What the engine does not know travels over the control connections.
  std::vector<at::Tensor> others;
  ByteWriter description;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    description.put_text(name + " " + type_of(tensor) + to_string(shape_of(tensor)));
    others.push_back(tensor);
  };
  const auto parameters = module.named_parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (seen_[i].gradient == nullptr) {
      add(parameters[i].key(), parameters[i].value());
    }
  }
  for (const auto& item : module.named_buffers()) {
    if (options.buffers == Buffers::kLocal || !is_exchanged_buffer(item.value())) {
      add(item.key(), item.value());
    }
  }
  broadcast_small(others, hash_bytes(description.bytes()));
}

void DistributedDataParallel::Implementation::broadcast_small(
    const std::vector<at::Tensor>& tensors, std::uint64_t description) {
  ByteWriter mine;
  mine.put(description);
  const auto gather = [&](std::span<const std::byte> bytes) {
    auto all = group->control().all_gather(
        "values that are not trained", bytes, Deadline::after(options.engine.timeout));
    throw_if_failed(all ? Status::ok() : all.error());
    return std::move(*all);
  };
  const auto descriptions = gather(mine.bytes());
  for (std::size_t rank = 0; rank < descriptions.size(); ++rank) {
    if (ByteReader(descriptions[rank]).get<std::uint64_t>() !=
        ByteReader(descriptions[0]).get<std::uint64_t>()) {
      refuse("rank " + std::to_string(rank) +
             " has other frozen parameters or buffers than rank 0: all ranks need the same model");
    }
  }
  ContiguousValues values(tensors);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::span<std::byte> memory(values.memory()[i], values.bytes(i));
    for (std::size_t at = 0; at < memory.size(); at += kSmallBytes) {
      const auto piece = memory.subspan(at, std::min(kSmallBytes, memory.size() - at));
      const bool is_root = group->rank() == Rank{0};
      const auto all =
          gather(is_root ? std::span<const std::byte>(piece) : std::span<const std::byte>());
      if (all[0].size() != piece.size()) {
        refuse("rank 0 sent a start value of another size");
      }
      std::copy(all[0].begin(), all[0].end(), piece.begin());
    }
  }
  values.written();
}

void DistributedDataParallel::Implementation::attach(const std::shared_ptr<Implementation>& self) {
  for (std::size_t i = 0; i < self->gradients_.size(); ++i) {
    // Weakly: a graph may outlive us, and then its hooks do nothing.
    const std::weak_ptr<Implementation> weak = self;
    self->gradients_[i].accumulator->add_post_hook(std::make_unique<Hook>([weak, i] {
      if (const auto alive = weak.lock()) {
        alive->appeared(i);
      }
    }));
  }
}

std::vector<at::Tensor> DistributedDataParallel::Implementation::buffers_now() const {
  std::vector<at::Tensor> found;
  if (buffers_.empty()) {
    return found;
  }
  const auto named = module.named_buffers();
  for (const auto& buffer : buffers_) {
    const auto* tensor = named.find(buffer.name);
    const auto& spec = engine->parameter(buffer.id);
    if (tensor == nullptr || shape_of(*tensor) != spec.shape ||
        exchanged_type(*tensor) != spec.dtype) {
      give_up("buffer '" + buffer.name +
              "' was removed, or has another shape or type than when it was attached");
    }
    found.push_back(*tensor);
  }
  return found;
}

std::vector<at::Tensor> DistributedDataParallel::Implementation::exchanged_values() const {
  std::vector<at::Tensor> values;
  for (const auto& gradient : gradients_) {
    values.push_back(gradient.parameter);
  }
  for (auto& buffer : buffers_now()) {
    values.push_back(std::move(buffer));
  }
  return values;
}

void DistributedDataParallel::Implementation::check_module() const {
  const std::string advice = ": make a new DistributedDataParallel after changing a module";
  const auto named = module.named_parameters();
  for (const auto& seen : seen_) {
    const auto* now = named.find(seen.name);
    if (now == nullptr) {
      give_up("parameter '" + seen.name + "' was removed after attaching" + advice);
    }
    if (identity_of(*now) != seen.identity) {
      give_up("the tensor of parameter '" + seen.name + "' was replaced after attaching" + advice);
    }
    if (now->requires_grad() && !seen.required_gradient) {
      give_up("parameter '" + seen.name + "' was frozen when attached and is not now" + advice);
    }
    if (seen.gradient != nullptr && !fits(*seen.gradient, *now)) {
      give_up("parameter '" + seen.name + "' was given another shape or type after attaching" +
              advice);
    }
  }
  if (named.size() == seen_.size()) {
    return;
  }
  for (const auto& item : named) {
    if (std::none_of(seen_.begin(), seen_.end(), [&item](const Seen& seen) {
          return seen.name == item.key();
        })) {
      give_up("parameter '" + item.key() + "' was added after attaching" + advice);
    }
  }
}

bool DistributedDataParallel::Implementation::fits(const Gradient& gradient,
                                                   const at::Tensor& now) const {
  const auto& spec = engine->parameter(gradient.id);
  return exchanged_type(now) == spec.dtype && shape_of(now) == spec.shape &&
         torch::autograd::impl::try_get_grad_accumulator(now) == gradient.accumulator;
}

void DistributedDataParallel::Implementation::give_up(const std::string& text) const {
  const Status reason(StatusCode::kInvalidArgument, text);
  group->control().abort(reason);
  throw Error(reason);
}

}  // namespace stretto::libtorch

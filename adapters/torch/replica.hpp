// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/mutex.hpp"

#include "stretto/libtorch.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/autograd/function.h>

namespace stretto::libtorch {

/// One parameter that is exchanged.
struct Gradient {
  std::string name;
  at::Tensor parameter;
  std::shared_ptr<torch::autograd::Node> accumulator;  // lives as long as its hook shall fire
  ParameterId id{0};
  std::atomic<std::uint32_t> appeared{0};  // in how many backward passes of this step
  at::Tensor sent;                         // keeps the engine's source alive until it is taken
  at::Tensor mean;                         // names the engine's result
};

/// One buffer that is exchanged.
struct Buffer {
  std::string name;
  ParameterId id{0};
  at::Tensor sent;
};

/// One entry of named_parameters as it was at the start, to notice when it changes.
struct Seen {
  std::string name;
  const void* identity = nullptr;
  bool required_gradient = false;
  Gradient* gradient = nullptr;  // null if it is not exchanged
};

}  // namespace stretto::libtorch

namespace stretto::libtorch {

/// The state behind DistributedDataParallel, which hooks in the autograd graph reach weakly.
///
/// Threading: appeared is called by backward's threads, at most once at a time per parameter;
///            everything else is confined(training thread) while no backward runs.
struct DistributedDataParallel::Implementation {
 public:
  Implementation(std::shared_ptr<Group> joined,
                 torch::nn::Module& trained,
                 const DistributedDataParallelOptions& chosen);

  /// Registers everything with the engine and commits; throws.
  void register_tensors();
  void give_start_values();
  /// Puts a hook on each parameter that reaches `self` as long as it lives.
  static void attach(const std::shared_ptr<Implementation>& self);

  void begin_step(const StepOptions& options);
  StepReport finish_step();
  void check_replicas();
  /// Gives parameters gradients of their own, so that the engine can end before the module.
  void release_gradients() noexcept;
  /// A parameter's gradient is complete for one backward pass.
  void appeared(std::size_t index);

  std::shared_ptr<Group> group;
  std::shared_ptr<torch::nn::Module> module_owner;  // null if the module is not shared
  torch::nn::Module& module;
  DistributedDataParallelOptions options;
  std::shared_ptr<Engine> engine;  // shared with the gradients that lie in its memory

 private:
  void register_parameters();
  void register_buffers();
  void broadcast_small(const std::vector<at::Tensor>& tensors, std::uint64_t description);
  void begin_if_needed();
  void send(Gradient& gradient);
  void release_taken();
  void send_rest();
  void send_buffers();
  void take_means();
  void take_buffers();
  void check_module() const;
  bool fits(const Gradient& gradient, const at::Tensor& now) const;
  std::vector<at::Tensor> buffers_now() const;
  std::vector<at::Tensor> exchanged_values() const;
  /// Tells the other ranks, so that they do not wait for a time-out, and throws.
  [[noreturn]] void give_up(const std::string& text) const;

  std::deque<Gradient> gradients_;  // in reverse order of registration; addresses stay
  // The gradients that were sent in this step, in that order, and how many of them were released.
  std::vector<std::atomic<Gradient*>> sent_;
  std::atomic<std::size_t> sent_count_{0};
  std::size_t released_count_ = 0;  // whoever has set `releasing_`
  std::atomic<bool> releasing_{false};
  std::vector<Buffer> buffers_;
  std::vector<Seen> seen_;
  std::size_t buffer_count_ = 0;  // of the module, exchanged or not
  Mutex begin_mutex_;
  std::atomic<bool> begun_{false};
  std::uint32_t backward_passes_ = 1;
  bool ended_ = false;
};

}  // namespace stretto::libtorch

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/engine.hpp"
#include "stretto/group.hpp"
#include "stretto/options.hpp"
#include "stretto/report.hpp"
#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

namespace stretto::libtorch {

/// What this adapter throws: libtorch's own error type, with the Status that says what to do next.
///
/// Threading: immutable.
class Error : public c10::Error {
 public:
  explicit Error(Status status);
  const Status& status() const noexcept { return status_; }

 private:
  Status status_;
};

/// Finds the other ranks by RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (stretto run, torchrun,
/// mpirun, srun); blocks until all are there.
///
/// Errors: throws Error that names the ranks that are missing.
std::shared_ptr<Group> join();

/// What happens in each step to a module's floating-point buffers, such as running statistics.
/// Buffers of other types (counters, float64) get rank 0's values at the start only.
enum class Buffers : std::uint8_t {
  kBroadcast,  ///< all ranks take rank 0's
  kAverage,    ///< all ranks take the mean
  kLocal,      ///< each rank keeps its own
};

/// Which values training starts from.
enum class StartValues : std::uint8_t {
  kBroadcast,  ///< rank 0's parameters and buffers, on all ranks
  kAsTheyAre,  ///< the ranks have made sure that they agree (a checkpoint, a seed)
};

/// Whether STRETTO_SCHEDULE and its kin are read over what the program says.
enum class Environment : std::uint8_t { kRead, kIgnore };

struct DistributedDataParallelOptions {
  EngineOptions engine;
  Buffers buffers = Buffers::kBroadcast;
  StartValues start_values = StartValues::kBroadcast;
  Environment environment = Environment::kRead;
  /// Needed only for codecs that keep the momentum themselves (topk with momentum=): the optimizer,
  /// so that one with a momentum of its own is refused.
  const torch::optim::Optimizer* optimizer = nullptr;
};

/// Makes the gradients of a module the mean over all ranks, and moves them while backward runs.
///
///   auto loss = loss_of(net->forward(data), target);
///   loss.backward();      // gradients leave as they appear
///   ddp.finish_step();    // param.grad() is now the mean
///   optimizer.step();
///
/// The module is used as before: nothing wraps it.  Parameters that do not require a gradient when
/// this is constructed are left alone.  A gradient after finish_step lies in the engine's memory
/// and is written anew by the next step; clone what must last longer.  Between its departure and
/// finish_step a parameter may have none: the memory of what has left is given back, so that
/// backward's next gradients find it.  Both ways of zeroing a gradient, to zeros and to none, are
/// right.
///
/// Accumulation: say begin_step({.samples = n, .backward_passes = k}) before the first of k
/// backward
///            passes.  A parameter's gradient travels when it has appeared for the k-th time; one
///            that appeared less often travels in finish_step.  One that appears for the k+1-th
///            time ends the run with an error that names it.
/// Threading: confined(training thread); backward may use threads of its own.
/// Ownership: shares the group and the module (if it is held by a shared_ptr; else the module must
///            outlive the last call).  Destroying this before the module is legal: the module then
///            trains alone.  Gradients keep the engine's memory alive.  The destructor waits for
///            nobody.
/// Errors:    every method throws Error.  The first error is final.
class DistributedDataParallel {
 public:
  /// Agrees with all ranks on the parameters and gives all of them rank 0's values.
  ///
  /// Errors: a parameter or type that cannot be exchanged, or differs between ranks, by name.
  DistributedDataParallel(std::shared_ptr<Group> group,
                          torch::nn::Module& module,
                          DistributedDataParallelOptions options = {});
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;
  ~DistributedDataParallel();

  /// Says what is particular to this step.  Without it a step is one backward pass that weighs as
  /// much as everyone else's.
  void begin_step(const StepOptions& options);

  /// Waits until the mean of every gradient is in place.
  ///
  /// A parameter that no rank used keeps the gradient that it had.
  StepReport finish_step();

  /// For a rank that has no further batches: goes on updating with the others' gradients until all
  /// ranks have come here.  All ranks call it, once, after their last step, whoever was first.
  void follow_until_all_ended(torch::optim::Optimizer& optimizer);

  /// Writes what codecs keep between the steps, beside a checkpoint: every rank calls it.  As
  /// Engine::save_residuals.
  void save_residuals(const std::string& prefix, std::uint64_t step) const;

  /// Reads it again, on every rank, before the first step; `world_size` as the checkpoint says.  As
  /// Engine::load_residuals.
  RestoredResiduals load_residuals(const std::string& prefix,
                                   std::uint64_t step,
                                   std::size_t world_size);

  /// Compares the ranks' parameters now.  finish_step does it every `check_replicas_every` steps.
  void check_replicas();

  /// Ends in order; all ranks call it.  Without it, a rank that ends a little earlier is reported
  /// lost by the others.
  void shutdown();

  Engine& engine() noexcept;

 private:
  struct Implementation;
  std::shared_ptr<Implementation> implementation_;  // hooks in the autograd graph watch it
};

/// What a checkpoint holds beside tensors.
struct CheckpointInfo {
  std::uint64_t step = 0;                    ///< steps that it contains
  std::uint64_t world_size = 1;              ///< ranks that trained it
  std::map<std::string, std::string> texts;  ///< the caller's own; keys not under "stretto."
};

/// Writes parameters, buffers and, if given, the optimizer's state as a safetensors file.  The file
/// appears whole or not at all.  One rank is enough: they are replicas.
///
/// Errors: throws Error (a full disk, say); whatever stood at `path` is then unchanged.
void save_checkpoint(const std::string& path,
                     const torch::nn::Module& module,
                     const torch::optim::Optimizer* optimizer,
                     const CheckpointInfo& info);

/// Reads what save_checkpoint wrote, on every rank.  Training goes on as if it had not stopped, to
/// the last bit.  The optimizer's part is libtorch's own archive: read files only from whom you
/// trust.
///
/// Errors: throws Error that names the first tensor that is missing or has another shape or type;
///         nothing has been changed then.
CheckpointInfo load_checkpoint(const std::string& path,
                               torch::nn::Module& module,
                               torch::optim::Optimizer* optimizer);

/// Hash of all parameters' names and bits: equal on two ranks if and (almost) only if they agree.
std::uint64_t weight_hash(const torch::nn::Module& module);

}  // namespace stretto::libtorch

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/group.hpp"
#include "stretto/options.hpp"
#include "stretto/report.hpp"
#include "stretto/spi/device.hpp"
#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stretto {

/// How the ranks' contributions to a parameter become one.
enum class Rule : std::uint8_t {
  kMean,       ///< mean over all samples of all ranks: gradients
  kRootValue,  ///< rank 0's: buffers such as running statistics
  kRankMean,   ///< mean over ranks that contribute: averaged buffers
};

/// One tensor that is to be exchanged in each step.
struct ParameterSpec {
  std::string name;  ///< the same on all ranks; appears in every error
  Shape shape;
  DType dtype = DType::kFloat32;
  Rule rule = Rule::kMean;
};

/// What is particular to one step.
struct StepOptions {
  std::uint64_t samples = 1;  ///< on this rank, over all of the step's backward passes; 0 is legal
  std::uint32_t backward_passes = 1;  ///< gradients are added over these and travel in the last
  bool ended = false;                 ///< this rank has no further batches and follows the others
  /// The optimizer's, if residuals of codecs are to be scaled when it changes; 0: they stay as they
  /// are.
  double learning_rate = 0;
};

/// What became of residuals that were loaded.
struct RestoredResiduals {
  std::vector<Rank> missing;      ///< ranks of the earlier run whose file is not there
  std::size_t lost_segments = 0;  ///< of which the owner's residual went with them
};

/// Moves gradients while backward still runs.
///
/// One step:  begin_step, then ready for each parameter as its gradient appears (in any order, on
/// any
///            thread; once per backward pass), then finish_step.  Between two backward passes of
///            one step call next_backward.
/// Threading: ready and taken are thread-safe; everything else is confined(training thread).
/// Ownership: the memory that gradient_slot and result name is the engine's.
/// Errors:    the first failure ends the step and is returned by every later call.
class Engine {
 public:
  /// Makes an engine for this rank.  All ranks of the group do, in the same order.
  static Result<std::unique_ptr<Engine>> create(std::shared_ptr<Group> group,
                                                const EngineOptions& options);

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  virtual ~Engine() = default;

  /// Adds a tensor; before commit, in the same order on all ranks (commit checks).
  virtual Result<ParameterId> add_parameter(ParameterSpec spec) = 0;

  /// Agrees with all ranks on names, shapes, types and the plan, and allocates everything.
  ///
  /// Errors: kInvalidArgument names both ranks, the parameter, both shapes and dtypes.
  virtual Status commit() = 0;

  virtual std::size_t parameter_count() const noexcept = 0;
  virtual const ParameterSpec& parameter(ParameterId id) const = 0;

  /// Where this rank's gradient may be written before `ready(id)`; free again after finish_step.
  virtual std::byte* gradient_slot(ParameterId id) noexcept = 0;
  /// Where the reduced gradient lies after finish_step, until the parameter is ready again.
  virtual std::byte* result(ParameterId id) noexcept = 0;

  /// Gives every rank rank 0's values: `values[i]` is the memory of parameter i.  Between steps.
  virtual Status broadcast(std::span<std::byte* const> values) = 0;

  virtual Status begin_step(const StepOptions& options) = 0;
  /// Ends one of several backward passes of a step.
  virtual Status next_backward() = 0;

  /// Says that the gradient lies in its slot.  Never waits; one push to a queue.
  ///
  /// Errors: kInvalidArgument if it was ready before in this backward pass (the step is aborted).
  virtual Status ready(ParameterId id) = 0;
  /// Says that the gradient lies at `gradient`, which stays unchanged until `taken(id)` or
  /// finish_step; the engine takes it over in one pass (and adds, after the first backward pass).
  /// `produced`, if given, is done when the gradient is there.
  virtual Status ready(ParameterId id,
                       const std::byte* gradient,
                       spi::Event* produced = nullptr) = 0;

  /// Whether the gradients of all backward passes have been taken over in this step, so that their
  /// memory is the caller's again.  Never waits.  Threading: thread-safe.
  virtual bool taken(ParameterId id) const noexcept = 0;

  /// Blocks until the reduced gradient of one parameter is in place.
  virtual Status wait_gradient(ParameterId id) = 0;

  /// Sends what has not been ready as unused, blocks until everything is home, and accounts.
  virtual Result<StepReport> finish_step() = 0;

  /// Whether some rank contributed to this parameter in the last finished step.
  virtual bool used_by_any(ParameterId id) const noexcept = 0;

  /// Compares a hash of the ranks' values: `values[i]` is the memory of parameter i.  Between
  /// steps.
  ///
  /// Errors: kAborted names the ranks that differ and the first parameter in which they do.
  virtual Status check_replicas(std::span<const std::byte* const> values) = 0;

  /// Writes what codecs keep between the steps, for a checkpoint: a file per rank, named
  /// PREFIX.rank-R-of-P; every rank calls it.  Between steps; after a failure too, and then as it
  /// was before the step that failed.  Without a codec it writes nothing.
  ///
  /// Errors: kUnavailable (a full disk, say): what stood there before stands.
  virtual Status save_residuals(const std::string& prefix, std::uint64_t step) = 0;

  /// Reads what `world_size` ranks saved with this prefix and step; every rank calls it, after
  /// commit and before its first step.  With as many ranks as now training goes on to the last bit.
  /// With another number the residuals are handed round so that their sum, weighted by samples, is
  /// what it was; those of means go to whoever owns them now.
  ///
  /// Errors: kInvalidArgument names the file and what in it is of another model, codec or step, and
  ///         kUnavailable where no file is there: nothing has been changed then.
  virtual Result<RestoredResiduals> load_residuals(const std::string& prefix,
                                                   std::uint64_t step,
                                                   std::size_t world_size) = 0;

  /// For a step whose result the optimizer does not take (a loss scaler skips it): codecs forget
  /// it. After finish_step and before the next begin_step, on all ranks or none.
  virtual Status discard_residuals() = 0;

  /// What encodes the gradient of a parameter, by name; "none" if its bytes travel as they are.
  virtual std::string_view codec(ParameterId id) const = 0;

  /// Whether a codec keeps the momentum (DGC): then the optimizer must not have one.
  virtual bool codec_owns_momentum() const noexcept = 0;

  /// Steps begun so far; the number that errors and traces name.
  virtual std::uint64_t step() const noexcept = 0;
  virtual const EngineOptions& options() const noexcept = 0;
  /// What is really in use: "owner over tcp"; "ring over tcp, order native".
  virtual std::string describe() const = 0;

  /// Ends in order: nothing is in flight afterwards.  Without it the destructor only stops.
  virtual Status shutdown() = 0;

 protected:
  Engine() = default;
};

}  // namespace stretto

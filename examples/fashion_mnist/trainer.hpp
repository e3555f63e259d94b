// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options.hpp"
#include "summary.hpp"

#include "stretto/group.hpp"
#include "stretto/options.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fashion_mnist {

class Task;

/// What a test has come to.
struct Judgement {
  double accuracy = 0;
  double loss = 0;  ///< mean over the answers, in nats
};

/// One net in training: by itself if there is no group.
///
/// Threading: confined(training thread).
/// Errors:    throws stretto::libtorch::Error.
class Trainer {
 public:
  /// `group` is null to train alone; `rank` and `world_size` are those that the task was made for.
  Trainer(const Options& options,
          std::unique_ptr<Task> task,
          std::shared_ptr<stretto::Group> group,
          std::size_t rank,
          std::size_t world_size,
          const stretto::EngineOptions& engine);
  ~Trainer();

  /// Steps that a run of these options has, the warm-up included.
  std::size_t total_steps() const;
  std::size_t steps_per_epoch() const;
  /// The next step: forward, backward, finish_step, update.
  StepFigures step();
  std::uint64_t steps_done() const { return done_; }

  /// How the net does on the first `count` that there are to judge by; ranks share the work.
  Judgement test(std::size_t count);
  std::uint64_t weight_hash() const;
  std::size_t parameter_elements() const;
  std::string schedule() const;

  void save(const std::string& path);
  void load(const std::string& path);
  void shutdown();

 private:
  struct Parts;  // what needs libtorch's headers

  void save_residuals(const std::string& path);
  void set_learning_rate();

  const Options& options_;
  std::unique_ptr<Task> task_;
  std::shared_ptr<stretto::Group> group_;
  std::size_t rank_;
  std::size_t world_size_;
  std::uint64_t done_ = 0;
  std::vector<std::uint64_t> saved_;  ///< steps whose residuals lie beside the checkpoint
  std::unique_ptr<Parts> parts_;
};

}  // namespace fashion_mnist

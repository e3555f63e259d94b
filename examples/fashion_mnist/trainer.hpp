// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "dataset.hpp"
#include "options.hpp"
#include "sampler.hpp"
#include "summary.hpp"

#include "stretto/group.hpp"
#include "stretto/options.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fashion_mnist {

/// One net in training: by itself if there is no group.
///
/// Threading: confined(training thread).
/// Errors:    throws stretto::libtorch::Error.
class Trainer {
 public:
  /// `group` is null to train alone; `rank` and `world_size` say which pictures are ours.
  Trainer(const Options& options,
          const Dataset& dataset,
          std::shared_ptr<stretto::Group> group,
          std::size_t rank,
          std::size_t world_size,
          const stretto::EngineOptions& engine);
  ~Trainer();

  /// Steps that a run of these options has, the warm-up included.
  std::size_t total_steps() const;
  std::size_t steps_per_epoch() const { return sampler_.steps_per_epoch(); }
  /// The next step: forward, backward, finish_step, update.
  StepFigures step();
  std::uint64_t steps_done() const { return done_; }

  /// Share of the first `pictures` test pictures that the net gets right; ranks share the work.
  double test(std::size_t pictures);
  std::uint64_t weight_hash() const;
  std::size_t parameter_elements() const;
  std::string schedule() const;

  void save(const std::string& path) const;
  void load(const std::string& path);
  void shutdown();

 private:
  struct Parts;  // what needs libtorch's headers

  const Options& options_;
  const Dataset& dataset_;
  std::shared_ptr<stretto::Group> group_;
  std::size_t rank_;
  std::size_t world_size_;
  Sampler sampler_;
  std::uint64_t done_ = 0;
  std::unique_ptr<Parts> parts_;
};

}  // namespace fashion_mnist

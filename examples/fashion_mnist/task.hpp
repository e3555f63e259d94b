// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "dataset.hpp"
#include "options.hpp"
#include "text.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <torch/types.h>

namespace fashion_mnist {

/// What a net is shown, and what it should say.
struct Batch {
  torch::Tensor inputs;   ///< pictures [n, 1, 28, 28] from -0.5 to 0.5, or characters [n, context]
  torch::Tensor answers;  ///< [n], or [n, context]: the characters that follow
};

/// What there is to learn, dealt to ranks, and by what it is judged.
///
/// Threading: confined(training thread).
class Task {
 public:
  Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  virtual ~Task() = default;

  /// The same on all ranks; 0 if there is less data than one step takes.
  virtual std::size_t steps_per_epoch() const = 0;
  /// This rank's in a step counted over all epochs.
  virtual Batch batch_of(std::uint64_t step) = 0;
  virtual std::size_t test_count() const = 0;
  virtual Batch test_batch(std::span<const std::uint32_t> numbers) = 0;
  /// Different answers.
  virtual std::size_t classes() const = 0;
};

/// Naming pictures.  The data must outlive the task.
std::unique_ptr<Task> make_picture_task(const Dataset& dataset,
                                        const Options& options,
                                        std::size_t rank,
                                        std::size_t world_size);

/// Guessing the next character, in windows of kContext.  The text must outlive the task.
std::unique_ptr<Task> make_text_task(const Text& text,
                                     const Options& options,
                                     std::size_t rank,
                                     std::size_t world_size);

}  // namespace fashion_mnist

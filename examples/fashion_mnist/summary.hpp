// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fashion_mnist {

/// What one step took on this rank.
struct StepFigures {
  double step_ms = 0;  ///< forward, backward, finish_step, update
  double exposed_ms = 0;
  double hidden_ms = 0;
  std::uint64_t payload_bytes = 0;
  double loss = 0;
};

/// What a run took, per step, in medians over the timed steps.
struct Summary {
  std::string schedule;
  std::size_t steps = 0;  ///< that were timed
  double step_ms = 0;
  double min_ms = 0;
  double max_ms = 0;
  double compute_ms = 0;
  double exposed_ms = 0;
  double hidden_ms = 0;
  double images_per_s = 0;  ///< of all ranks
  double bytes_per_step = 0;
  double total_s = 0;
  double loss = 0;  ///< mean over the last steps
  std::uint64_t weight_hash = 0;
  std::optional<double> accuracy;   ///< of the test
  std::optional<double> test_loss;  ///< mean over the answers, in nats
};

/// `images_per_step` are those of all ranks.
Summary summarise(const std::vector<StepFigures>& steps, std::size_t images_per_step);

/// The table that a run ends with.
std::string table_of(const std::vector<Summary>& summaries);

/// A line that is drawn over and over on a terminal; elsewhere a plain line now and then.
///
/// Threading: thread-compatible.
class Progress {
 public:
  enum class Shown : std::uint8_t { kYes, kNo };
  Progress(Shown shown, std::size_t total, std::size_t images_per_step);
  void update(std::size_t done, const StepFigures& step);
  /// Leaves the last line standing.
  void end();

 private:
  bool shown_;
  bool terminal_;
  std::size_t total_;
  std::size_t images_per_step_;
  std::size_t next_line_ = 0;
  StepFigures smooth_;
  bool drawn_ = false;
};

}  // namespace fashion_mnist

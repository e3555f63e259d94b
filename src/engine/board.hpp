// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/mutex.hpp"
#include "base/signal.hpp"

#include "stretto/report.hpp"
#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace stretto::engine {

/// A span of time.
struct Interval {
  TimePoint begin{};
  TimePoint end{};
};

/// A few intervals in order; when there are too many the last ones grow together.
///
/// Threading: thread-compatible.
class Intervals {
 public:
  void clear() noexcept { count_ = 0; }
  void add(Interval interval) noexcept;
  double total_ms() const noexcept;
  /// Time that lies in both.
  static double overlap_ms(const Intervals& a, const Intervals& b) noexcept;

 private:
  std::array<Interval, 256> items_{};
  std::size_t count_ = 0;
};

/// What the progress thread knows of a finished step.
struct StepOutcome {
  std::uint64_t step = 0;
  Intervals busy;
  std::uint64_t payload_bytes = 0;
  std::uint64_t wire_bytes = 0;
  std::uint64_t samples = 0;
  std::uint64_t non_finite = 0;
  std::uint64_t refused = 0;
  double value_squares = 0;  ///< of what was encoded
  double left_squares = 0;   ///< of what is left of it
  std::size_t unused = 0;
  std::size_t chunks = 0;
  double cpu_s = 0;
  bool all_ended = false;
  bool replan = false;
  std::optional<Rank> last_rank;
};

/// What the training thread and the progress thread both see.
///
/// Threading: thread-safe; `outcome` belongs to the progress thread until `done_step` names its
/// step,
///            then to the training thread until the next step begins.
struct Board {
  explicit Board(std::size_t parameters) : taken_step(parameters), home_step(parameters) {}

  std::vector<std::atomic<std::uint64_t>>
      taken_step;  ///< by parameter: step whose gradient has been copied from the caller's memory
  std::vector<std::atomic<std::uint64_t>>
      home_step;                            ///< by parameter: step whose result is in place
  std::atomic<std::uint64_t> done_step{0};  ///< everything of this step is home and released
  std::atomic<std::uint32_t> parked{0};     ///< 1 while the progress thread is parked
  std::atomic<bool> failed{false};          ///< `failure()` says why
  std::atomic<bool> quiet{false};  ///< after a failure: nothing reads the user's memory any more
  Signal changed;
  StepOutcome outcome;

  /// Keeps the first error; later ones are its consequences.
  void fail(const Status& status);
  /// The first error, or success.
  Status failure() const;

 private:
  mutable Mutex mutex_;
  Status failure_ STRETTO_GUARDED_BY(mutex_);
};

}  // namespace stretto::engine

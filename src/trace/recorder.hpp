// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stretto::trace {

/// Where a span is drawn.
enum class Lane : std::uint8_t { kTraining, kGradients, kWire, kSteps };

/// Something that happened to a parameter, a chunk or a step.
enum class What : std::uint8_t {
  kReady,   ///< a gradient appeared; id: parameter
  kTaken,   ///< from ready until the gradient lies in the arena; id: parameter
  kChunk,   ///< from launch to the last result; id: chunk
  kHome,    ///< a parameter's result is in place; id: parameter
  kWait,    ///< the training thread waited
  kStep,    ///< one step
  kReplan,  ///< before a step, gradients having come in another order: the training thread waited
};

/// The word that traces print.
const char* to_string(What what) noexcept;

struct Span {
  What what = What::kStep;
  Lane lane = Lane::kSteps;
  std::uint32_t id = 0;
  std::uint64_t step = 0;
  TimePoint begin{};
  TimePoint end{};
};

/// Keeps the last spans in memory; writing them is for later, off every hot path.
///
/// Threading: confined(one writer); read only when the writer is done.
/// Cost:      a few nanoseconds a span; no allocation; nothing at all if the capacity is 0.
class Recorder {
 public:
  explicit Recorder(std::size_t capacity) : spans_(capacity) {}

  bool enabled() const noexcept { return !spans_.empty(); }
  void add(const Span& span) noexcept {
    if (enabled()) {
      spans_[next_ % spans_.size()] = span;
      ++next_;
    }
  }
  /// The spans that are still there, oldest first.
  std::vector<Span> spans() const;
  /// How many were overwritten.
  std::uint64_t lost() const noexcept { return next_ > spans_.size() ? next_ - spans_.size() : 0; }

 private:
  std::vector<Span> spans_;
  std::uint64_t next_ = 0;
};

}  // namespace stretto::trace

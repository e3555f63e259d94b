// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "schedule/layout.hpp"

#include "stretto/spi/device.hpp"
#include "stretto/spi/exchange.hpp"
#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace stretto::engine {

/// What codecs keep between the steps: the residuals of this rank's gradients, those of the means
/// that it owns, and codecs' own state.  The codecs work on it in the pass in which they encode;
/// this decides what they find there, and what becomes of it.
///
/// The unit is the gradient of the mean over all samples: rank i keeps r_i such that the sum of
/// n_i r_i / N is what the mean lacks.  So r_i is scaled by n_i(before) / n_i(now) when the samples
/// change, and by the learning rates' ratio where they are given.
///
/// Two halves, in turn: a step reads what the last one has left from one and writes the other, and
/// end_step makes that the one to read.  A step that is abandoned is never ended: it has changed
/// nothing.
///
/// Residuals that come from another number of ranks stand for their share of the mean, n_i r_i / N;
/// the first step's samples make them this rank's.
///
/// Source: error feedback, Seide et al. 2014, Karimireddy et al. 2019.
/// Threading: confined(progress) from begin_step to end_step, thread-compatible else.
/// Cost: 8 bytes per coded element with feedback, and 8 per element that this rank owns.
class ErrorFeedback {
 public:
  /// Room for the groups of a layout, zeroed: nothing is carried yet.  `layout` and `coding`
  /// outlive it.
  static Result<std::unique_ptr<ErrorFeedback>> make(const schedule::Layout& layout,
                                                     const schedule::Coding& coding,
                                                     spi::Device& device,
                                                     Rank rank);

  /// Whether the next step has to say how many samples all ranks have together.
  bool needs_total() const noexcept { return books_.is_share && books_.total == 0; }
  void set_total(std::uint64_t samples) noexcept { books_.total = samples; }

  /// A step in which this rank has so many samples; 0 for the rate where it is unknown.
  void begin_step(std::uint64_t samples, double learning_rate) noexcept;
  /// The step is over; `samples` of all ranks together.
  void end_step(std::uint64_t samples) noexcept;
  /// Takes the last step back, once.  Errors: kInvalidArgument where there is none.
  Status discard_step();

  /// What a group's codec works on in this step.
  spi::CodedMemory memory(std::size_t group) const noexcept;

 private:
  friend class ResidualFiles;

  /// Where a group's memory begins, in floats of each half.
  struct Place {
    std::size_t residual = kNone;
    std::size_t owned = kNone;
    std::size_t state = kNone;
    std::size_t scratch = kNone;
  };
  static constexpr std::size_t kNone = SIZE_MAX;
  /// What the half to read stands for.
  struct Books {
    std::size_t half = 0;
    std::uint64_t steps = 0;    ///< that codecs have seen, over all runs
    std::uint64_t samples = 0;  ///< n_i that the residuals are weighted by; 0: nothing is carried
    std::uint64_t total = 0;    ///< N
    double learning_rate = 0;   ///< 0: unknown
    bool is_share = false;      ///< residuals are n_i r_i / N of other ranks
  };

  ErrorFeedback(const schedule::Layout& layout, const schedule::Coding& coding, Rank rank)
      : layout_(layout), coding_(coding), rank_(rank), places_(layout.groups.size()) {}

  spi::ChunkDescription describe(std::size_t group) const noexcept;
  float* floats(std::size_t half, std::size_t place) const noexcept;

  const schedule::Layout& layout_;
  const schedule::Coding& coding_;
  Rank rank_;
  std::vector<Place> places_;  ///< by group
  std::array<std::unique_ptr<spi::Buffer>, 2> halves_;
  std::unique_ptr<spi::Buffer> scratch_;
  Books books_;
  Books before_;               ///< the last step
  bool has_before_ = false;    ///< discard_step can go back to it
  std::uint64_t samples_ = 0;  ///< of this rank in this step
  double learning_rate_ = 0;   ///< in this step
  float factor_ = 1;
};

}  // namespace stretto::engine

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "checkpoint/safetensors.hpp"
#include "engine/error_feedback.hpp"

#include "stretto/engine.hpp"
#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stretto::engine {

/// Residuals and codecs' states as files: one safetensors file per rank, PREFIX.rank-R-of-P.
///
/// Of each segment, which begins at element FIRST of the parameter NAME, all float32:
/// residual.NAME.FIRST is what this rank's gradient lacks, owner.NAME.FIRST what the mean lacks (in
/// the file of the rank that owned it), state.NAME.FIRST what the codec keeps.
///
/// Threading: thread-compatible; between steps.
class ResidualFiles {
 public:
  /// `parameters` as the layout's; `ranks` as there are now.
  ResidualFiles(ErrorFeedback& feedback,
                std::span<const ParameterSpec> parameters,
                std::size_t ranks)
      : feedback_(feedback), parameters_(parameters), ranks_(ranks) {}

  /// Errors: kUnavailable (a full disk, say): whatever stood there before stands.
  Status save(const std::string& prefix, std::uint64_t step) const;

  /// As Engine::load_residuals.
  Result<RestoredResiduals> load(const std::string& prefix,
                                 std::uint64_t step,
                                 std::size_t world_size);

 private:
  /// A rank's file that was opened and fits.
  struct Source {
    checkpoint::SafetensorsFile file;
    std::size_t rank = 0;
    ErrorFeedback::Books books;
  };
  /// Where a segment's memory lies.
  struct Segment {
    std::string suffix;  ///< NAME.FIRST
    std::size_t elements = 0;
    std::size_t state_floats = 0;
    bool state_adds_up = false;  ///< and is not the same on all ranks
    float* residual = nullptr;
    float* owned = nullptr;
    float* state = nullptr;
  };
  /// What is to be written, once all is read.
  struct Taken {
    float* to = nullptr;
    std::vector<float> values;
  };

  std::vector<Segment> segments(std::size_t half) const;
  std::uint64_t plan_hash() const;
  std::string path_of(const std::string& prefix, std::size_t rank, std::size_t ranks) const;
  Result<Source> open(const std::string& path, std::uint64_t step, std::size_t rank) const;
  Result<std::vector<Source>> open_all(const std::string& prefix,
                                       std::uint64_t step,
                                       std::size_t world_size,
                                       RestoredResiduals& report) const;
  Result<std::vector<Taken>> read(const std::vector<Source>& sources,
                                  bool same_ranks,
                                  RestoredResiduals& report) const;
  Status read_sum(const std::vector<Source>& sources,
                  bool same_ranks,
                  const std::string& name,
                  std::vector<float>& values) const;

  ErrorFeedback& feedback_;
  std::span<const ParameterSpec> parameters_;
  std::size_t ranks_;
};

}  // namespace stretto::engine

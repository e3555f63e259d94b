// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/codec.hpp"
#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace stretto::cli {

/// The mean of one parameter's gradients over ranks that all live in this thread, through a codec:
/// what an exchange does with owners, without a network.
///
/// Every rank encodes its gradient, an owner adds up and encodes the mean, and all decode that;
/// each keeps its residual where the codec has error feedback.
///
/// Threading: confined(one thread).
class CodedMean {
 public:
  /// `row_elements` of a vector is 0.  A null codec, and one that does not suit, leave float32 as
  /// it is.
  CodedMean(std::shared_ptr<const spi::Codec> codec,
            std::size_t element_count,
            std::size_t row_elements,
            std::size_t ranks,
            std::uint64_t seed);

  /// The mean over the ranks, all of one weight.
  ///
  /// Shapes:  gradients [ranks][element_count], one rank after the other; result [element_count].
  /// Errors:  whatever the codec says.
  Status average(std::span<const float> gradients, std::span<float> result);

  /// Bytes that the ranks have sent to owners and these have sent back, for one rank, per step.
  std::size_t wire_bytes() const noexcept { return wire_bytes_; }

 private:
  /// What stays at one place for one segment.
  struct Place {
    std::vector<float> residual;
    std::vector<float> left;
    std::vector<float> state;
    std::vector<float> next_state;
    std::vector<float> scratch;

    spi::CodecMemory memory();
    void next_step();
  };
  struct Segment {
    spi::CodecSegment what;
    std::size_t first = 0;
    std::vector<Place> places;  ///< the ranks', then the owner's
  };

  void add_segment(std::size_t first, std::size_t count, std::size_t row_elements);
  void average_plainly(std::span<const float> gradients, std::span<float> result) const;
  Status average_segment(Segment& segment,
                         std::span<const float> gradients,
                         std::span<float> result);

  std::shared_ptr<const spi::Codec> codec_;  // shared with the other parameters
  std::size_t element_count_;
  std::size_t ranks_;
  std::uint64_t seed_;
  std::uint64_t step_ = 0;
  std::size_t wire_bytes_ = 0;
  std::vector<Segment> segments_;
  std::vector<std::byte> wire_;
  std::vector<float> sums_;
};

}  // namespace stretto::cli

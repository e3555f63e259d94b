// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/codec.hpp"
#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stretto::cli {

/// What gradients look like.
struct GradientKind {
  std::string distribution = "heavy";  ///< heavy (Student's t, 3 degrees of freedom), normal, zeros
  DType dtype = DType::kFloat32;
  std::size_t bytes = 0;
};

/// Memory as engines have it: it begins where a cache line does.  Zeroed.
template <typename T>
class AlignedMemory {
 public:
  void resize(std::size_t count) {
    lines_.assign((count * sizeof(T) + sizeof(Line) - 1) / sizeof(Line), Line());
    count_ = count;
  }
  T* data() noexcept { return reinterpret_cast<T*>(lines_.data()); }
  const T* data() const noexcept { return reinterpret_cast<const T*>(lines_.data()); }
  std::size_t size() const noexcept { return count_; }
  bool empty() const noexcept { return count_ == 0; }
  void swap(AlignedMemory& other) noexcept {
    lines_.swap(other.lines_);
    std::swap(count_, other.count_);
  }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes{};
  };
  std::vector<Line> lines_;
  std::size_t count_ = 0;
};

/// What one codec did.
struct CodecFigures {
  double memcpy_gbps = 0;  ///< bytes copied per second
  double encode_gbps = 0;  ///< gradient bytes per second
  double decode_gbps = 0;
  double ratio = 0;  ///< gradient bytes by the wires' bytes, counted
  double touched_bytes_per_element = 0;
  double max_error = 0;  ///< by the largest magnitude of the element's segment
  bool bound_ok = true;
  std::size_t refused = 0;
  double residual_ratio = 0;  ///< norm of what is left by that of the gradient

  double share() const { return encode_gbps / memcpy_gbps; }
  /// Of the rate at which memcpy would read and write what the codec must.
  double limit_share(DType dtype) const {
    return share() * touched_bytes_per_element / (2.0 * static_cast<double>(size_of(dtype)));
  }
};

/// One rank's gradient with one codec: encodes and decodes it on one core, segment by segment as an
/// engine does, with the memory between steps that the codec asks for.
///
/// Each step's gradient begins at another place, so that residuals are not of one gradient only.
/// Threading: confined(main thread).
class CodecTrial {
 public:
  CodecTrial(std::shared_ptr<const spi::Codec> codec, const GradientKind& kind);

  /// memcpy, encode and decode by turns until the time is over, five times at least; medians.  Then
  /// holds the last step's error to the codec's bound, element by element.
  Result<CodecFigures> measure(std::chrono::duration<double> time);

 private:
  struct Part {
    spi::CodecSegment segment;
    std::size_t first = 0;    ///< element
    std::size_t state = 0;    ///< offset in floats
    std::size_t scratch = 0;  ///< offset in floats
    std::size_t wire = 0;     ///< offset in bytes
    std::size_t wire_room = 0;
    std::size_t wire_bytes = 0;  ///< of the round that was encoded last
  };
  struct Times {
    double copy = 0;
    double encode = 0;
    double decode = 0;
  };

  void make_parts();
  Result<Times> step();
  Status encode(unsigned round);
  Status conclude(unsigned round);
  Status decode(unsigned round);
  void judge(CodecFigures& figures) const;
  void judge_part(const Part& part, CodecFigures& figures) const;
  spi::CodecMemory memory(const Part& part);
  spi::CodecRound round_of(unsigned round) const { return {round, step_, 0, 1}; }
  const std::byte* gradient() const;
  std::span<std::byte> wires() { return {wires_.data(), wires_.size()}; }
  double touched() const;

  std::shared_ptr<const spi::Codec> codec_;
  GradientKind kind_;
  std::size_t element_count_ = 0;
  std::vector<Part> parts_;
  AlignedMemory<std::byte> values_;
  AlignedMemory<std::byte> result_;
  AlignedMemory<std::byte> wires_;
  AlignedMemory<float> residual_;
  AlignedMemory<float> left_;
  AlignedMemory<float> state_;
  AlignedMemory<float> next_state_;
  AlignedMemory<float> scratch_;
  AlignedMemory<float> sums_;
  std::uint64_t step_ = 0;
  std::size_t wire_total_ = 0;  ///< of a step, all rounds
  std::size_t refused_ = 0;     ///< in a step
  double value_squares_ = 0;
  double left_squares_ = 0;
};

}  // namespace stretto::cli

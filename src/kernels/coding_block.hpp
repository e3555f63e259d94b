// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/coding_formats.hpp"
#include "kernels/scalar_formats.hpp"

#include <algorithm>
#include <array>

// One block of a segment, one element at a time: the whole of the scalar kernels, and what the
// vector kernels do with a block that has values to refuse.

namespace stretto::kernels {

/// The x of a block, zeros behind its end, and what is known of them.
struct CodingBlock {
  alignas(64) std::array<float, kCodingBlock> x{};
  std::uint32_t largest = 0;  ///< |x|, as bits
  float magnitudes = 0;       ///< sum of |x|
  float middle = 0;  ///< between the smallest and the largest x; of vectors, for sign alone
  float value_squares = 0;
  std::size_t refused = 0;
};

inline float load_scalar(DType dtype, const std::byte* from, std::size_t i) noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return ScalarFloat::load(from, i);
    case DType::kFloat16:
      return ScalarHalf::load(from, i);
    case DType::kBFloat16:
      return ScalarBrain::load(from, i);
  }
  return 0;
}

/// Of at least one element.
inline void read_block_scalar(const EncodeTask& task,
                              std::size_t first,
                              std::size_t count,
                              CodingBlock& block) noexcept {
  std::array<float, kSumLanes> magnitudes{};
  std::array<float, kSumLanes> squares{};
  block = CodingBlock{};
  for (std::size_t i = 0; i < count; ++i) {
    const float value = load_scalar(task.dtype, task.values, first + i);
    const float residual = task.residual == nullptr ? 0.0F : task.residual[first + i];
    float x = coding_input(value, task.scale, residual, task.factor);
    float scaled = value * task.scale;
    if (beyond_coding_limit(x)) {
      x = coding_input_refused(residual, task.factor);
      scaled = 0;
      ++block.refused;
    }
    block.x[i] = x;
    const std::uint32_t magnitude = bits_of(x) & 0x7fffffffU;
    block.largest = std::max(block.largest, magnitude);
    const std::size_t lane = i % kSumLanes;
    magnitudes[lane] = magnitudes[lane] + float_of(magnitude);
    squares[lane] = squares[lane] + scaled * scaled;
  }
  block.magnitudes = sum_of_lanes(magnitudes.data());
  block.value_squares = sum_of_lanes(squares.data());
  const auto [smallest, largest] = std::minmax_element(block.x.begin(), block.x.begin() + count);
  block.middle = middle_of(*smallest, *largest);
}

inline SignMeans sign_means_scalar(const CodingBlock& block, std::size_t count) noexcept {
  std::array<float, kSumLanes> below{};
  std::array<float, kSumLanes> above{};
  std::size_t count_above = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float x = block.x[i];
    auto& lanes = x > block.middle ? above : below;
    lanes[i % kSumLanes] = lanes[i % kSumLanes] + x;
    count_above += x > block.middle ? 1 : 0;
  }
  return sign_means(sum_of_lanes(below.data()), sum_of_lanes(above.data()), count, count_above);
}

}  // namespace stretto::kernels

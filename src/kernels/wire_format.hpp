// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>

namespace stretto::kernels {

/// How an element is written; by block of kCodingBlock elements, all blocks' scales first.
enum class WireFormat : std::uint8_t {
  kHalf,   ///< float16, a power of two (one byte) per block
  kBrain,  ///< bfloat16
  kInt8,   ///< -127..127, a float32 per block
  kInt4,   ///< -7..7, a float32 per block
  kSign,   ///< one bit, two bfloat16 per block
  kVote,   ///< one bit: the sign; of a zero, a coin's
};

/// What encode reads and writes.
struct EncodeTask {
  DType dtype = DType::kFloat32;  ///< of values
  const std::byte* values = nullptr;
  std::size_t element_count = 0;
  float scale = 1;
  const float* residual = nullptr;  ///< what an earlier step has left; null: nothing
  float factor = 1;                 ///< for the residual
  float* left = nullptr;            ///< what this wire leaves; may be `residual`; null: unwanted
  std::byte* wire = nullptr;        ///< [wire_bytes]
  bool random = false;              ///< integers: to the level above or below by chance, unbiased
  std::uint32_t seed = 0;           ///< of chance: another one for each segment, rank and step
};

/// What encode has seen.
struct EncodeFacts {
  std::size_t refused = 0;   ///< values beyond 2^60, infinite or no number
  double magnitudes = 0;     ///< sum of |x|; of votes alone
  double value_squares = 0;  ///< sum of (value * scale)^2, of those that were not refused
  double left_squares = 0;   ///< sum of left^2, if wanted
};

}  // namespace stretto::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/arithmetic.hpp"

#include <cstddef>
#include <cstdint>

// What the codecs compute for one element and for one block, in the manner of arithmetic.hpp: fixed
// series of float32 operations, the same on every processor.  C++17, so that other compilers can
// share it.
//
// A segment is coded in blocks of kCodingBlock elements, the last of which may be shorter.  The
// value of an element is x = value * scale + residual * factor.  Blocks know the largest |x| or the
// means of what is small and what is large; sums over a block go through kSumLanes partial sums,
// element i into sum i % kSumLanes, which are then added in pairs: (0 + 8), (1 + 9), ..., then (0 +
// 4), ..., so that every width of vector gives the same bits.

namespace stretto::kernels {

inline constexpr std::size_t kCodingBlock = 256;
inline constexpr std::size_t kSumLanes = 16;

/// 2^60: an x that is larger, infinite or no number is refused: it is counted, and the element has
/// no value in this step but what its residual says.  No sum of squares over a block leaves
/// float32's range.
inline constexpr std::uint32_t kCodingLimit = (127U + 60U) << 23U;

inline bool beyond_coding_limit(float x) noexcept {
  return (bits_of(x) & 0x7fffffffU) > kCodingLimit;
}

/// x, before anything is known of it.
inline float coding_input(float value, float scale, float residual, float factor) noexcept {
  const float scaled = value * scale;
  const float carried = residual * factor;
  return scaled + carried;
}

/// The x of an element that was refused.
inline float coding_input_refused(float residual, float factor) noexcept {
  const float carried = residual * factor;
  return beyond_coding_limit(carried) ? 0.0F : carried;
}

/// Adds up partial sums.
inline float sum_of_lanes(float* lanes) noexcept {
  for (std::size_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) {
      lanes[i] = lanes[i] + lanes[i + half];
    }
  }
  return lanes[0];
}

/// What a float16 result says of a number that its range may not hold: it stays a number.
inline float within_half(float value) noexcept {
  return value > kHalfFinite ? kHalfFinite : (value < -kHalfFinite ? -kHalfFinite : value);
}

// --- float16 with a power of two per block: the largest |x| goes to [2^14, 2^15)

/// Float32's exponent of the largest |x|, as the wire says it.
inline std::uint8_t half_block_exponent(std::uint32_t largest_bits) noexcept {
  constexpr std::uint32_t kLeast = 15;  // 2^(141 - 15) still has an inverse that is normal
  const std::uint32_t exponent = largest_bits >> 23U;
  return static_cast<std::uint8_t>(exponent < kLeast ? kLeast : exponent);
}
inline bool is_half_block_exponent(std::uint8_t exponent) noexcept {
  return exponent >= 15U && exponent <= kCodingLimit >> 23U;
}
/// 2^(14 + 127 - exponent), and its inverse.  Of bytes that no encoder wrote, whatever they give is
/// defined.
inline float half_block_scale(std::uint8_t exponent) noexcept {
  return float_of((268U - exponent) << 23U);
}
inline float half_block_unscale(std::uint8_t exponent) noexcept {
  return float_of((exponent < 15U ? 1U : exponent - 14U) << 23U);
}
/// The largest float16 below 2^15: what would be rounded up to 2^15 stays there.
inline constexpr std::uint16_t kHalfLargest = 0x77ffU;
inline std::uint16_t half_of_scaled(float scaled) noexcept {
  const std::uint16_t half = float_to_half(scaled);
  const std::uint16_t magnitude = half & 0x7fffU;
  return static_cast<std::uint16_t>((half & 0x8000U) |
                                    (magnitude > kHalfLargest ? kHalfLargest : magnitude));
}

// --- integers with a float32 per block

/// Below 2^-110 a block counts as zeros: its inverse would be too large.
inline constexpr std::uint32_t kLeastBlock = (127U - 110U) << 23U;

/// The step between two levels, and its inverse; 0 and 0 for a block of zeros.
struct Quantum {
  float step = 0;
  float inverse = 0;
};
inline Quantum quantum_of(std::uint32_t largest_bits, float levels) noexcept {
  if (largest_bits < kLeastBlock) {
    return {};
  }
  const float largest = float_of(largest_bits);
  return {largest / levels, levels / largest};
}

/// 1.5 * 2^23: the sum with a number of up to 2^22 has its nearest integer in the last bits.
inline constexpr std::uint32_t kRounder = 0x4b400000U;

/// The nearest level, ties to even.
inline std::int32_t nearest_level(float x, float inverse) noexcept {
  const float scaled = x * inverse;
  return static_cast<std::int32_t>(bits_of(scaled + float_of(kRounder)) - kRounder);
}

/// A number for each element of each step, as good as random: the finalizer of a 32-bit hash with
/// full avalanche.
inline std::uint32_t scramble(std::uint32_t word) noexcept {
  word ^= word >> 16U;
  word *= 0x7feb352dU;
  word ^= word >> 15U;
  word *= 0x846ca68bU;
  word ^= word >> 16U;
  return word;
}

/// The number of element i.
inline std::uint32_t chance(std::uint32_t seed, std::size_t i) noexcept {
  return scramble(seed ^ (static_cast<std::uint32_t>(i) * 0x9e3779b9U));
}

/// The level above or below, so that the mean over all numbers is x (QSGD, Alistarh et al. 2017).
inline std::int32_t random_level(float x,
                                 float inverse,
                                 std::uint32_t word,
                                 std::int32_t levels) noexcept {
  // u + 1/2 - 1/2: nearest(scaled + u - 1/2) is floor(scaled + u), but for ties.
  const float u = static_cast<float>(static_cast<std::int32_t>(word >> 8U)) * 0x1p-24F;
  const float scaled = x * inverse + (u - 0.5F);
  const auto level = static_cast<std::int32_t>(bits_of(scaled + float_of(kRounder)) - kRounder);
  return level > levels ? levels : (level < -levels ? -levels : level);
}

// --- one bit: whether x is above the middle of its block; and two bfloat16 per block: the means of
// what is below and of what is above (1-bit SGD, Seide et al. 2014, with their two means; gradients
// are mostly near zero with a few large ones, which zero as a threshold would not tell apart)

/// Of at least one element.
inline float middle_of(float smallest, float largest) noexcept {
  return (smallest + largest) * 0.5F;
}

struct SignMeans {
  std::uint16_t below = 0;
  std::uint16_t above = 0;  ///< never less
};
/// There is always one below: the smallest.
inline SignMeans sign_means(float sum_below,
                            float sum_above,
                            std::size_t count,
                            std::size_t count_above) noexcept {
  const float below = sum_below / static_cast<float>(count - count_above);
  const float above = count_above == 0 ? below : sum_above / static_cast<float>(count_above);
  // Where all lie close together, rounding of the sums could turn them round.
  return {float_to_brain(below), float_to_brain(above < below ? below : above)};
}

/// A vote has no zero, so a coin decides.
inline unsigned vote_of(float x, std::uint32_t word) noexcept {
  return x < 0 || (x == 0 && (word >> 31U) != 0) ? 1U : 0U;
}

}  // namespace stretto::kernels

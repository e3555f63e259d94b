// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

// What every kernel computes for one element, and so the meaning of "the same bits".  Each function
// is a fixed series of IEEE-754 float32 operations, each rounded to nearest even by itself (the
// project is built with -ffp-contract=off).  The vector kernels follow these line by line; a test
// compares them on every instruction set.  C++17, so that other compilers can share it.
//
// NaN: a cast to a narrower type keeps sign and the upper bits of the payload and sets the quiet
// bit, as F16C does; float16 to float32 also sets it; bfloat16 to float32 is a shift, bit by bit.
// Which NaN a sum gives is left open by the standard and differs between processors and compilers,
// so whatever a sum stores is made canonical: 0x7fc00000, or its cast.

namespace stretto::kernels {

/// A float32 as its bits, and back.
inline std::uint32_t bits_of(float value) noexcept {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float float_of(std::uint32_t bits) noexcept {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline constexpr std::uint32_t kCanonicalNan = 0x7fc00000U;
inline constexpr std::uint32_t kExponentMask = 0x7f800000U;
inline constexpr std::uint32_t kQuietBit = 0x00400000U;

// float16 has 5 bits of exponent (bias 15) and 10 of fraction; float32 has 8 (bias 127) and 23.
inline constexpr std::uint32_t kHalfShift = 23U - 10U;
/// Moves an exponent from float16's bias to float32's.
inline constexpr std::uint32_t kHalfBias = (127U - 15U) << 23U;
/// The smallest normal float16, 2^-14, as a float32.
inline constexpr std::uint32_t kHalfSmallestNormal = (127U - 14U) << 23U;
/// 2^16, above the range of float16, as a float32.
inline constexpr std::uint32_t kHalfOverflow = (127U + 16U) << 23U;
/// The largest number that a float16 can be.
inline constexpr float kHalfFinite = 65504.0F;
/// 0.5: its last place is 2^-24, the spacing of float16's subnormals, so that adding it lets the
/// adder round a small number to that spacing.
inline constexpr std::uint32_t kHalfSubnormalRounder = (127U - 1U) << 23U;

/// Exact; signalling NaN becomes quiet.
inline float half_to_float(std::uint16_t half) noexcept {
  const std::uint32_t sign = (half & 0x8000U) << 16U;
  const std::uint32_t moved = (half & 0x7fffU) << kHalfShift;
  const std::uint32_t exponent = moved & (0x1fU << 23U);
  std::uint32_t magnitude = moved + kHalfBias;
  if (exponent == (0x1fU << 23U)) {  // infinity or NaN
    magnitude = moved | kExponentMask;
    magnitude |= magnitude > kExponentMask ? kQuietBit : 0U;
  } else if (exponent == 0) {  // zero or subnormal: 2^-14 + value, less 2^-14
    magnitude = bits_of(float_of(moved + kHalfSmallestNormal) - float_of(kHalfSmallestNormal));
  }
  return float_of(sign | magnitude);
}

/// To nearest even; beyond the range, infinity.
inline std::uint16_t float_to_half(float value) noexcept {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t half = 0;
  if (magnitude > kExponentMask) {
    half = 0x7e00U | ((magnitude >> kHalfShift) & 0x3ffU);
  } else if (magnitude >= kHalfOverflow) {
    half = 0x7c00U;
  } else if (magnitude < kHalfSmallestNormal) {
    half = bits_of(float_of(magnitude) + float_of(kHalfSubnormalRounder)) - kHalfSubnormalRounder;
  } else {
    const std::uint32_t odd = (magnitude >> kHalfShift) & 1U;
    half = (magnitude - kHalfBias + 0xfffU + odd) >> kHalfShift;  // may carry into infinity: right
  }
  return static_cast<std::uint16_t>(sign | half);
}

/// Exact, bit by bit.
inline float brain_to_float(std::uint16_t brain) noexcept {
  return float_of(static_cast<std::uint32_t>(brain) << 16U);
}

/// To nearest even; beyond the range, infinity.
inline std::uint16_t float_to_brain(float value) noexcept {
  const std::uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffU) > kExponentMask) {
    return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  }
  const std::uint32_t odd = (bits >> 16U) & 1U;
  return static_cast<std::uint16_t>((bits + 0x7fffU + odd) >> 16U);
}

/// What a sum stores in place of `value`.
inline float canonical(float value) noexcept {
  return value != value ? float_of(kCanonicalNan) : value;
}

/// One term of a sum: two roundings, never a fused one.
inline float add_weighted(float total, float weight, float value) noexcept {
  const float product = weight * value;
  return total + product;
}

}  // namespace stretto::kernels

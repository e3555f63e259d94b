// SPDX-License-Identifier: Apache-2.0
#include "kernels/arithmetic.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace stretto::kernels {
namespace {

/// The value of a float16 by its definition.
double half_by_definition(std::uint16_t half) {
  const int exponent = (half >> 10) & 0x1f;
  const int fraction = half & 0x3ff;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

bool is_half_special(std::uint32_t half) {
  return (half & 0x7c00U) == 0x7c00U;
}

TEST(Arithmetic, KnownHalves) {
  EXPECT_EQ(float_to_half(1.0F), 0x3c00);
  EXPECT_EQ(float_to_half(-2.0F), 0xc000);
  EXPECT_EQ(float_to_half(0.1F), 0x2e66);
  EXPECT_EQ(float_to_half(65504.0F), 0x7bff);    // the largest
  EXPECT_EQ(float_to_half(65519.996F), 0x7bff);  // just below the middle to infinity
  EXPECT_EQ(float_to_half(65520.0F), 0x7c00);    // the middle: to even, infinity
  EXPECT_EQ(float_to_half(1e30F), 0x7c00);
  EXPECT_EQ(float_to_half(std::ldexp(1.0F, -14)), 0x0400);  // the smallest normal
  EXPECT_EQ(float_to_half(std::ldexp(1.0F, -24)), 0x0001);  // the smallest subnormal
  EXPECT_EQ(float_to_half(std::ldexp(1.0F, -25)), 0x0000);  // the middle: to even, zero
  EXPECT_EQ(float_to_half(std::ldexp(1.5F, -25)), 0x0001);
  EXPECT_EQ(float_to_half(-0.0F), 0x8000);
  EXPECT_EQ(float_to_half(1.0F + std::ldexp(1.0F, -11)), 0x3c00);  // the middle: to even, down
  EXPECT_EQ(float_to_half(1.0F + std::ldexp(3.0F, -11)), 0x3c02);  // the middle: to even, up
}

TEST(Arithmetic, KnownBrains) {
  EXPECT_EQ(float_to_brain(1.0F), 0x3f80);
  EXPECT_EQ(float_to_brain(3.14159265F), 0x4049);
  EXPECT_EQ(float_to_brain(-0.0F), 0x8000);
  EXPECT_EQ(float_to_brain(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_brain(float_of(0x3f808000)), 0x3f80);  // the middle: to even, down
  EXPECT_EQ(float_to_brain(float_of(0x3f818000)), 0x3f82);  // the middle: to even, up
  EXPECT_EQ(float_to_brain(float_of(0x00000001)), 0x0000);
  EXPECT_EQ(float_to_brain(float_of(0x00018000)), 0x0002);  // subnormal, the middle
}

TEST(Arithmetic, CastsKeepTheSignAndUpperPayloadOfNanAndMakeItQuiet) {
  EXPECT_EQ(float_to_half(float_of(0x7f800001)), 0x7e00);
  EXPECT_EQ(float_to_half(float_of(0xffabc000)), 0xff5e);
  EXPECT_EQ(float_to_brain(float_of(0x7f800001)), 0x7fc0);
  EXPECT_EQ(float_to_brain(float_of(0xffab1234)), 0xffeb);
  EXPECT_EQ(bits_of(half_to_float(0x7c01)), 0x7fc02000U);
  EXPECT_EQ(bits_of(half_to_float(0xfe00)), 0xffc00000U);
  EXPECT_EQ(bits_of(brain_to_float(0x7f81)), 0x7f810000U);
}

TEST(Arithmetic, EveryHalfIsExactAndComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = half_to_float(half);
    if (!is_half_special(bits)) {
      ASSERT_EQ(static_cast<double>(value), half_by_definition(half)) << std::hex << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000U) != 0) << std::hex << bits;
    }
    const bool nan = is_half_special(bits) && (bits & 0x3ffU) != 0;
    ASSERT_EQ(std::isnan(value), nan) << std::hex << bits;
    ASSERT_EQ(float_to_half(value), nan ? bits | 0x200U : bits) << std::hex << bits;
  }
}

TEST(Arithmetic, HalvesRoundToNearestEvenAtEveryMiddle) {
  for (std::uint32_t bits = 0; bits < 0x7bffU; ++bits) {
    const auto below = static_cast<std::uint16_t>(bits);
    const auto above = static_cast<std::uint16_t>(bits + 1);
    const auto middle =
        static_cast<float>((half_by_definition(below) + half_by_definition(above)) / 2);
    const std::uint16_t even = (bits & 1U) == 0 ? below : above;
    ASSERT_EQ(float_to_half(middle), even) << std::hex << bits;
    ASSERT_EQ(float_to_half(std::nextafter(middle, 0.0F)), below) << std::hex << bits;
    ASSERT_EQ(float_to_half(std::nextafter(middle, 1e9F)), above) << std::hex << bits;
    ASSERT_EQ(float_to_half(-middle), even | 0x8000U) << std::hex << bits;
  }
}

TEST(Arithmetic, EveryBrainComesBackAndMiddlesGoToEven) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto brain = static_cast<std::uint16_t>(bits);
    const float value = brain_to_float(brain);
    const bool nan = (bits & 0x7fffU) > 0x7f80U;
    ASSERT_EQ(float_to_brain(value), nan ? bits | 0x40U : bits) << std::hex << bits;
    if ((bits & 0x7fffU) < 0x7f80U) {
      const std::uint32_t even = bits + (bits & 1U);
      ASSERT_EQ(float_to_brain(float_of((bits << 16U) | 0x8000U)), even) << std::hex << bits;
      ASSERT_EQ(float_to_brain(float_of((bits << 16U) | 0x7fffU)), bits) << std::hex << bits;
      ASSERT_EQ(float_to_brain(float_of((bits << 16U) | 0x8001U)), bits + 1) << std::hex << bits;
    }
  }
}

TEST(Arithmetic, ProductsAndSumsAreRoundedApart) {
  // 1 + 2^-12 squared is 1 + 2^-11 + 2^-24, whose last term is lost when the product is rounded by
  // itself; a fused operation would keep it.
  const float factor = 1.0F + std::ldexp(1.0F, -12);
  EXPECT_EQ(add_weighted(-1.0F - std::ldexp(1.0F, -11), factor, factor), 0.0F);
}

}  // namespace
}  // namespace stretto::kernels

// SPDX-License-Identifier: Apache-2.0

// Element types as vectors of float32: included by the vector kernels, once per instruction set.
#if defined(STRETTO_KERNELS_SIMD_FORMATS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_KERNELS_SIMD_FORMATS_INL_HPP
#undef STRETTO_KERNELS_SIMD_FORMATS_INL_HPP
#else
#define STRETTO_KERNELS_SIMD_FORMATS_INL_HPP
#endif

#include "kernels/arithmetic.hpp"
#include "kernels/scalar_formats.hpp"

#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
/// As many 16-bit lanes as there are floats in a vector.
using U16 = hn::Rebind<std::uint16_t, F32>;
using VF32 = hn::Vec<F32>;
using VU32 = hn::Vec<U32>;

HWY_INLINE VF32 canonical_vector(VF32 value) {
  const F32 d;
  return hn::IfThenElse(hn::IsNaN(value), hn::BitCast(d, hn::Set(U32(), kCanonicalNan)), value);
}

HWY_INLINE VU32 load_narrow(const std::byte* from, std::size_t i) {
  return hn::PromoteTo(U32(),
                       hn::LoadU(U16(), reinterpret_cast<const std::uint16_t*>(from + 2 * i)));
}

/// `bits` are below 2^16.
HWY_INLINE void store_narrow(std::byte* to, std::size_t i, VU32 bits) {
  hn::StoreU(hn::DemoteTo(U16(), hn::BitCast(I32(), bits)),
             U16(),
             reinterpret_cast<std::uint16_t*>(to + 2 * i));
}

struct Float {
  using Scalar = ScalarFloat;
  using Element = float;
  static HWY_INLINE VF32 load(const std::byte* from, std::size_t i) {
    return hn::LoadU(F32(), reinterpret_cast<const float*>(from + 4 * i));
  }
  static HWY_INLINE void store(std::byte* to, std::size_t i, VF32 value) {
    hn::StoreU(value, F32(), reinterpret_cast<float*>(to + 4 * i));
  }
  static HWY_INLINE void store_sum(std::byte* to, std::size_t i, VF32 value) {
    store(to, i, canonical_vector(value));
  }
};

struct Brain {
  using Scalar = ScalarBrain;
  using Element = std::uint16_t;
  static HWY_INLINE VF32 load(const std::byte* from, std::size_t i) {
    return hn::BitCast(F32(), hn::ShiftLeft<16>(load_narrow(from, i)));
  }
  static HWY_INLINE void store(std::byte* to, std::size_t i, VF32 value) {
    const U32 d;
    const VU32 upper = hn::ShiftRight<16>(hn::BitCast(d, value));
    const auto nan = hn::RebindMask(d, hn::IsNaN(value));
    store_narrow(to, i, hn::IfThenElse(nan, hn::Or(upper, hn::Set(d, 0x40U)), round(value)));
  }
  static HWY_INLINE void store_sum(std::byte* to, std::size_t i, VF32 value) {
    store_narrow(to, i, round(canonical_vector(value)));  // rounds the canonical NaN to its cast
  }

 private:
  static HWY_INLINE VU32 round(VF32 value) {
    const U32 d;
    const VU32 bits = hn::BitCast(d, value);
    const VU32 odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1U));
    return hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7fffU))));
  }
};

// AVX2 machines have F16C, which does exactly what arithmetic.hpp says (a test tries all values).
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
struct Half {
  using Scalar = ScalarHalf;
  using Element = std::uint16_t;
  using F16 = hn::Rebind<hwy::float16_t, F32>;
  static HWY_INLINE VF32 load(const std::byte* from, std::size_t i) {
    const auto bits = hn::LoadU(U16(), reinterpret_cast<const std::uint16_t*>(from + 2 * i));
    return hn::PromoteTo(F32(), hn::BitCast(F16(), bits));
  }
  static HWY_INLINE void store(std::byte* to, std::size_t i, VF32 value) {
    const auto bits = hn::BitCast(U16(), hn::DemoteTo(F16(), value));
    hn::StoreU(bits, U16(), reinterpret_cast<std::uint16_t*>(to + 2 * i));
  }
  static HWY_INLINE void store_sum(std::byte* to, std::size_t i, VF32 value) {
    store(to, i, canonical_vector(value));
  }
};
#else
struct Half {
  using Scalar = ScalarHalf;
  using Element = std::uint16_t;
  static HWY_INLINE VF32 load(const std::byte* from, std::size_t i) {
    const U32 d;
    const F32 df;
    const VU32 half = load_narrow(from, i);
    const VU32 sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d, 0x8000U)));
    const VU32 moved = hn::ShiftLeft<kHalfShift>(hn::And(half, hn::Set(d, 0x7fffU)));
    const VU32 all_ones = hn::Set(d, 0x1fU << 23U);
    const VU32 exponent = hn::And(moved, all_ones);
    const VU32 normal = hn::Add(moved, hn::Set(d, kHalfBias));

    const VU32 infinity = hn::Set(d, kExponentMask);
    const VU32 special = hn::Or(moved, infinity);
    const VU32 quiet = hn::IfThenElseZero(hn::Ne(special, infinity), hn::Set(d, kQuietBit));

    const VU32 smallest = hn::Set(d, kHalfSmallestNormal);
    const VU32 small = hn::BitCast(
        d, hn::Sub(hn::BitCast(df, hn::Add(moved, smallest)), hn::BitCast(df, smallest)));

    VU32 magnitude = hn::IfThenElse(hn::Eq(exponent, all_ones), hn::Or(special, quiet), normal);
    magnitude = hn::IfThenElse(hn::Eq(exponent, hn::Zero(d)), small, magnitude);
    return hn::BitCast(df, hn::Or(sign, magnitude));
  }
  static HWY_INLINE void store(std::byte* to, std::size_t i, VF32 value) {
    const U32 d;
    const I32 di;  // magnitudes are below 2^31, and signed comparison is there on every target
    const F32 df;
    const VU32 bits = hn::BitCast(d, value);
    const VU32 sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 0x8000U));
    const VU32 magnitude = hn::And(bits, hn::Set(d, 0x7fffffffU));
    const auto compared = hn::BitCast(di, magnitude);

    const VU32 odd = hn::And(hn::ShiftRight<kHalfShift>(magnitude), hn::Set(d, 1U));
    const VU32 unbiased = hn::Sub(magnitude, hn::Set(d, kHalfBias));
    VU32 half = hn::ShiftRight<kHalfShift>(hn::Add(unbiased, hn::Add(odd, hn::Set(d, 0xfffU))));

    const VU32 rounder = hn::Set(d, kHalfSubnormalRounder);
    const VU32 small = hn::Sub(
        hn::BitCast(d, hn::Add(hn::BitCast(df, magnitude), hn::BitCast(df, rounder))), rounder);
    half = hn::IfThenElse(less(compared, kHalfSmallestNormal), small, half);
    half = hn::IfThenElse(less(compared, kHalfOverflow), half, hn::Set(d, 0x7c00U));

    const VU32 payload = hn::And(hn::ShiftRight<kHalfShift>(magnitude), hn::Set(d, 0x3ffU));
    const VU32 nan = hn::Or(payload, hn::Set(d, 0x7e00U));
    half = hn::IfThenElse(less(compared, kExponentMask + 1), half, nan);
    store_narrow(to, i, hn::Or(sign, half));
  }
  static HWY_INLINE void store_sum(std::byte* to, std::size_t i, VF32 value) {
    store(to, i, canonical_vector(value));
  }

 private:
  static HWY_INLINE hn::Mask<U32> less(hn::Vec<I32> value, std::uint32_t bound) {
    return hn::RebindMask(U32(), hn::Lt(value, hn::Set(I32(), static_cast<std::int32_t>(bound))));
  }
};
#endif

/// What a result of this type says of a number.
template <typename Format>
HWY_INLINE VF32 within(VF32 value) {
  if constexpr (!std::is_same_v<Format, Half>) {
    return value;
  }
  const VF32 most = hn::Set(F32(), kHalfFinite);
  return hn::Max(hn::Min(value, most), hn::Neg(most));
}

}  // namespace HWY_NAMESPACE
}  // namespace stretto::kernels
HWY_AFTER_NAMESPACE();

#endif  // per target

// SPDX-License-Identifier: Apache-2.0

// Some columns of a factor in registers, and the rows of a matrix as they come from memory:
// included by the vector kernels of low_rank.hpp, once per instruction set.
#if defined(STRETTO_KERNELS_LOW_RANK_COLUMNS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_KERNELS_LOW_RANK_COLUMNS_INL_HPP
#undef STRETTO_KERNELS_LOW_RANK_COLUMNS_INL_HPP
#else
#define STRETTO_KERNELS_LOW_RANK_COLUMNS_INL_HPP
#endif

#include "kernels/coding_block.hpp"
#include "kernels/low_rank_table.hpp"
#include "kernels/simd_formats-inl.hpp"

#include <array>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE

/// One vector of each of up to four columns, which lie `stride` floats apart.
template <std::size_t kColumns>
class Columns {
  static_assert(kColumns >= 1 && kColumns <= 4);

 public:
  static HWY_INLINE Columns load(const float* from, std::size_t stride) {
    const F32 d;
    Columns columns;
    columns.v0_ = hn::LoadU(d, from);
    if constexpr (kColumns > 1) {
      columns.v1_ = hn::LoadU(d, from + stride);
    }
    if constexpr (kColumns > 2) {
      columns.v2_ = hn::LoadU(d, from + 2 * stride);
    }
    if constexpr (kColumns > 3) {
      columns.v3_ = hn::LoadU(d, from + 3 * stride);
    }
    return columns;
  }
  /// One number of each in all lanes.
  static HWY_INLINE Columns set(const float* from, std::size_t stride) {
    const F32 d;
    Columns columns;
    columns.v0_ = hn::Set(d, from[0]);
    if constexpr (kColumns > 1) {
      columns.v1_ = hn::Set(d, from[stride]);
    }
    if constexpr (kColumns > 2) {
      columns.v2_ = hn::Set(d, from[2 * stride]);
    }
    if constexpr (kColumns > 3) {
      columns.v3_ = hn::Set(d, from[3 * stride]);
    }
    return columns;
  }
  HWY_INLINE void store(float* to, std::size_t stride) const {
    const F32 d;
    hn::StoreU(v0_, d, to);
    if constexpr (kColumns > 1) {
      hn::StoreU(v1_, d, to + stride);
    }
    if constexpr (kColumns > 2) {
      hn::StoreU(v2_, d, to + 2 * stride);
    }
    if constexpr (kColumns > 3) {
      hn::StoreU(v3_, d, to + 3 * stride);
    }
  }
  HWY_INLINE void add_products(VF32 x, const Columns& by) {
    v0_ = hn::Add(v0_, hn::Mul(x, by.v0_));
    if constexpr (kColumns > 1) {
      v1_ = hn::Add(v1_, hn::Mul(x, by.v1_));
    }
    if constexpr (kColumns > 2) {
      v2_ = hn::Add(v2_, hn::Mul(x, by.v2_));
    }
    if constexpr (kColumns > 3) {
      v3_ = hn::Add(v3_, hn::Mul(x, by.v3_));
    }
  }
  HWY_INLINE VF32 dot(const Columns& by) const {
    VF32 sum = hn::Mul(v0_, by.v0_);
    if constexpr (kColumns > 1) {
      sum = hn::Add(sum, hn::Mul(v1_, by.v1_));
    }
    if constexpr (kColumns > 2) {
      sum = hn::Add(sum, hn::Mul(v2_, by.v2_));
    }
    if constexpr (kColumns > 3) {
      sum = hn::Add(sum, hn::Mul(v3_, by.v3_));
    }
    return sum;
  }

 private:
  VF32 v0_;
  VF32 v1_;
  VF32 v2_;
  VF32 v3_;
};

/// Calls `call(a constant 4, 2 or 1, first of as many columns)` until all columns have had their
/// turn.
template <typename Call>
HWY_INLINE void by_columns(std::size_t rank, const Call& call) {
  std::size_t k = 0;
  for (; k + 4 <= rank; k += 4) {
    call(std::integral_constant<std::size_t, 4>(), k);
  }
  if (k + 2 <= rank) {
    call(std::integral_constant<std::size_t, 2>(), k);
    k += 2;
  }
  if (k < rank) {
    call(std::integral_constant<std::size_t, 1>(), k);
  }
}

/// sum_of_lanes, without a way through memory for each addition.
HWY_INLINE float reduce_lanes(const float* lanes) {
  const hn::FixedTag<float, 4> d;
  const auto sum = hn::Add(hn::Add(hn::LoadU(d, lanes), hn::LoadU(d, lanes + 8)),
                           hn::Add(hn::LoadU(d, lanes + 4), hn::LoadU(d, lanes + 12)));
  const auto half = hn::Add(sum, hn::Shuffle1032(sum));
  return hn::GetLane(hn::Add(half, hn::Shuffle2301(half)));
}

/// Element i of x, if it is not refused.
template <typename Format>
inline float form_element(const LowRankSource& source,
                          std::size_t i,
                          float& square,
                          std::size_t& refused) {
  const float residual = source.residual == nullptr ? 0.0F : source.residual[i];
  const float value = Format::Scalar::load(source.values, i);
  const float x = coding_input(value, 1, residual, source.factor);
  if (beyond_coding_limit(x)) {
    ++refused;
    return coding_input_refused(residual, source.factor);
  }
  square = square + value * value;
  return x;
}

/// Writes x of `count` elements from `first` on, which is where a row or a chunk of one begins;
/// adds to the kSumLanes sums of squares.  Returns how many were refused.
template <typename Format, bool kHasResidual>
HWY_INLINE std::size_t form(
    const LowRankSource& source, std::size_t first, std::size_t count, float* x, float* squares) {
  const F32 d;
  const I32 di;
  const std::size_t lanes = hn::Lanes(d);
  const std::byte* const values = source.values + first * sizeof(typename Format::Element);
  const float* const residual = kHasResidual ? source.residual + first : nullptr;
  const VF32 factor = hn::Set(d, source.factor);
  const VF32 none = hn::Mul(hn::Zero(d), factor);
  const std::size_t whole = count / kSumLanes * kSumLanes;
  auto largest = hn::Zero(di);
  HWY_ALIGN std::array<float, kSumLanes> sums;
  for (std::size_t part = 0; part < kSumLanes; part += lanes) {
    VF32 sum = hn::LoadU(d, squares + part);
    for (std::size_t j = part; j < whole; j += kSumLanes) {
      const VF32 value = Format::load(values, j);
      const VF32 carried = kHasResidual ? hn::Mul(hn::LoadU(d, residual + j), factor) : none;
      const VF32 here = hn::Add(value, carried);
      largest = hn::Max(largest, hn::BitCast(di, hn::Abs(here)));
      sum = hn::Add(sum, hn::Mul(value, value));
      hn::StoreU(here, d, x + j);
    }
    hn::Store(sum, d, sums.data() + part);
  }
  std::size_t refused = 0;
  const bool fine =
      static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest))) <= kCodingLimit;
  if (fine) {
    std::memcpy(squares, sums.data(), sizeof sums);
  }
  for (std::size_t j = fine ? whole : 0; j < count; ++j) {
    x[j] = form_element<Format>(source, first + j, squares[j % kSumLanes], refused);
  }
  return refused;
}

#endif  // HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace stretto::kernels
HWY_AFTER_NAMESPACE();

#endif  // per target

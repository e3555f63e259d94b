// SPDX-License-Identifier: Apache-2.0

// Blocks and wires of coding.hpp as vectors: included by coding_simd.cc, once per instruction set.
// Each function follows its namesake in coding_arithmetic.hpp.
#if defined(STRETTO_KERNELS_CODING_WIRES_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_KERNELS_CODING_WIRES_INL_HPP
#undef STRETTO_KERNELS_CODING_WIRES_INL_HPP
#else
#define STRETTO_KERNELS_CODING_WIRES_INL_HPP
#endif

#include "kernels/coding_block.hpp"
#include "kernels/simd_formats-inl.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE

using VI32 = hn::Vec<I32>;
/// As many bytes as there are floats in a vector.
using I8 = hn::Rebind<std::int8_t, F32>;
/// Whole vectors of narrower lanes.
using WideU16 = hn::Repartition<std::uint16_t, F32>;
using WideI16 = hn::Repartition<std::int16_t, F32>;
using WideI8 = hn::Repartition<std::int8_t, F32>;

/// Elements go in rows of kSumLanes, each of so many vectors.
constexpr std::size_t kRowVectors = kSumLanes / hn::MaxLanes(F32());
/// One row.
struct Row {
  VF32 v[kRowVectors];  // NOLINT(*-avoid-c-arrays): vectors are no elements for std::array
};

HWY_INLINE VF32 magnitude_of(VF32 value) {
  return hn::And(value, hn::BitCast(F32(), hn::Set(U32(), 0x7fffffffU)));
}

/// What a whole block's elements are read from.
struct Source {
  const std::byte* values;
  const float* residual;  ///< of the block; not looked at without feedback
  float scale;
  float factor;
};

/// The sum of 16, 8 or 4 partial sums, in the order of sum_of_lanes.
template <typename D>
HWY_INLINE float sum_of_vector(D /*d*/, hn::Vec<D> lanes) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return sum_of_vector(half, hn::Add(hn::LowerHalf(half, lanes), hn::UpperHalf(half, lanes)));
  } else {
    lanes = hn::Add(lanes, hn::Shuffle1032(lanes));
    return hn::GetLane(hn::Add(lanes, hn::Shuffle2301(lanes)));
  }
}

/// Adds up a row of partial sums.
HWY_INLINE float sum_of_row(const Row& row) {
  if constexpr (kRowVectors == 4) {
    return sum_of_vector(F32(), hn::Add(hn::Add(row.v[0], row.v[2]), hn::Add(row.v[1], row.v[3])));
  } else if constexpr (kRowVectors == 2) {
    return sum_of_vector(F32(), hn::Add(row.v[0], row.v[1]));
  } else {
    return sum_of_vector(F32(), row.v[0]);
  }
}

HWY_INLINE Row zero_row() {
  Row row;
  for (VF32& v : row.v) {
    v = hn::Zero(F32());
  }
  return row;
}

/// Reads a whole block.  False if there are values to refuse.
template <WireFormat kFormat, typename Format, bool kFeedback>
HWY_INLINE bool read_block(const Source& from, CodingBlock& block) {
  const VF32 scale = hn::Set(F32(), from.scale);
  const VF32 factor = hn::Set(F32(), from.factor);
  const I32 di;
  Row magnitudes = zero_row();
  Row squares = zero_row();
  Row largest = zero_row();
  VF32 least = hn::Set(F32(), float_of(0x7f800000U));
  VF32 greatest = hn::Neg(least);
  for (std::size_t row = 0; row < kCodingBlock; row += kSumLanes) {
    for (std::size_t v = 0; v < kRowVectors; ++v) {
      const std::size_t i = row + v * hn::MaxLanes(F32());
      const VF32 scaled = hn::Mul(Format::load(from.values, i), scale);
      const VF32 residual = kFeedback ? hn::LoadU(F32(), from.residual + i) : hn::Zero(F32());
      const VF32 x = hn::Add(scaled, hn::Mul(residual, factor));
      const VF32 magnitude = magnitude_of(x);
      hn::Store(x, F32(), block.x.data() + i);
      largest.v[v] =
          hn::BitCast(F32(), hn::Max(hn::BitCast(di, largest.v[v]), hn::BitCast(di, magnitude)));
      if constexpr (kFormat == WireFormat::kVote) {
        magnitudes.v[v] = hn::Add(magnitudes.v[v], magnitude);
      }
      squares.v[v] = hn::Add(squares.v[v], hn::Mul(scaled, scaled));
      if constexpr (kFormat == WireFormat::kSign) {
        least = hn::Min(least, x);
        greatest = hn::Max(greatest, x);
      }
    }
  }
  if constexpr (kFormat == WireFormat::kSign) {
    block.middle = middle_of(hn::GetLane(hn::MinOfLanes(F32(), least)),
                             hn::GetLane(hn::MaxOfLanes(F32(), greatest)));
  }
  VI32 most = hn::BitCast(di, largest.v[0]);
  for (std::size_t v = 1; v < kRowVectors; ++v) {
    most = hn::Max(most, hn::BitCast(di, largest.v[v]));
  }
  block.largest = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(di, most)));
  block.refused = 0;
  block.magnitudes = kFormat == WireFormat::kVote ? sum_of_row(magnitudes) : 0.0F;
  block.value_squares = sum_of_row(squares);
  return block.largest <= kCodingLimit;
}

// --- the formats: each writes a block's scale, then vectors, and returns what the wire says of
// them

template <WireFormat kFormat>
struct Wire;

/// What encode needs to know of a block to write its elements.
struct BlockScale {
  float scale = 0;    ///< for x, before it is rounded; sign: the middle
  float unscale = 0;  ///< and after; sign: the mean of what is below the middle
  float above = 0;    ///< sign: the mean of what is above
};

template <>
struct Wire<WireFormat::kHalf> {
  static HWY_INLINE BlockScale put_scale(const CodingBlock& block, std::size_t, std::byte* to) {
    const std::uint8_t exponent = half_block_exponent(block.largest);
    std::memcpy(to, &exponent, 1);
    return {half_block_scale(exponent), half_block_unscale(exponent)};
  }
  static HWY_INLINE BlockScale get_scale(const std::byte* from) {
    return {0, half_block_unscale(std::to_integer<std::uint8_t>(*from))};
  }
  static HWY_INLINE VF32 put(const BlockScale& with,
                             VF32 x,
                             std::byte* payload,
                             std::size_t i,
                             const EncodeTask&,
                             std::size_t) {
    const F32 d;
    const VF32 largest = hn::Set(d, half_to_float(kHalfLargest));
    const VF32 scaled = hn::Mul(x, hn::Set(d, with.scale));
    Half::store(payload, i, hn::Max(hn::Min(scaled, largest), hn::Neg(largest)));
    return get(with, payload, i);
  }
  static HWY_INLINE VF32 get(const BlockScale& with, const std::byte* payload, std::size_t i) {
    return hn::Mul(Half::load(payload, i), hn::Set(F32(), with.unscale));
  }
};

template <>
struct Wire<WireFormat::kBrain> {
  static HWY_INLINE BlockScale put_scale(const CodingBlock&, std::size_t, std::byte*) { return {}; }
  static HWY_INLINE BlockScale get_scale(const std::byte*) { return {}; }
  static HWY_INLINE VF32 put(const BlockScale&,
                             VF32 x,
                             std::byte* payload,
                             std::size_t i,
                             const EncodeTask&,
                             std::size_t) {
    Brain::store_sum(payload, i, x);  // x is a number
    return Brain::load(payload, i);
  }
  static HWY_INLINE VF32 get(const BlockScale&, const std::byte* payload, std::size_t i) {
    return Brain::load(payload, i);
  }
};

HWY_INLINE VU32 scramble_vector(VU32 word) {
  const U32 d;
  word = hn::Xor(word, hn::ShiftRight<16>(word));
  word = hn::Mul(word, hn::Set(d, 0x7feb352dU));
  word = hn::Xor(word, hn::ShiftRight<15>(word));
  word = hn::Mul(word, hn::Set(d, 0x846ca68bU));
  return hn::Xor(word, hn::ShiftRight<16>(word));
}

/// The numbers of the elements of a vector, from the first one's index in the segment.
HWY_INLINE VU32 chance_vector(std::uint32_t seed, std::size_t first) {
  const U32 d;
  const VU32 index = hn::Iota(d, static_cast<std::uint32_t>(first));
  return scramble_vector(hn::Xor(hn::Set(d, seed), hn::Mul(index, hn::Set(d, 0x9e3779b9U))));
}

/// Levels, each with 1.5 * 2^23 added: its last bits are the level, and less that it is the level
/// as a float.
HWY_INLINE VF32 rounded_levels(
    VF32 x, float inverse, std::int32_t levels, const EncodeTask& task, std::size_t index) {
  const F32 d;
  const VF32 rounder = hn::BitCast(d, hn::Set(U32(), kRounder));
  const VF32 scaled = hn::Mul(x, hn::Set(d, inverse));
  if (!task.random) {
    return hn::Add(scaled, rounder);
  }
  const VU32 word = hn::ShiftRight<8>(chance_vector(task.seed, index));
  const VF32 u = hn::Mul(hn::ConvertTo(d, hn::BitCast(I32(), word)), hn::Set(d, 0x1p-24F));
  const VF32 rounded = hn::Add(hn::Add(scaled, hn::Sub(u, hn::Set(d, 0.5F))), rounder);
  const VF32 most = hn::Set(d, static_cast<float>(levels));
  return hn::Max(hn::Min(rounded, hn::Add(rounder, most)), hn::Sub(rounder, most));
}

/// Writes a row of levels as bytes.
HWY_INLINE void store_levels(const Row& rounded, std::int8_t* to) {
  const I32 di;
  const auto level = [&](std::size_t v) HWY_ATTR {
    return hn::Sub(hn::BitCast(di, rounded.v[v]), hn::Set(di, static_cast<std::int32_t>(kRounder)));
  };
  if constexpr (kRowVectors == 1) {
    hn::StoreU(hn::DemoteTo(I8(), level(0)), I8(), to);
  } else {
    const hn::Rebind<std::int8_t, WideI16> bytes;
    for (std::size_t v = 0; v < kRowVectors; v += 2) {
      auto both = hn::ReorderDemote2To(WideI16(), level(v), level(v + 1));
      if constexpr (hn::MaxLanes(di) ==
                    8) {  // each half has the lower part of both, then the upper
        HWY_ALIGN static constexpr std::array<std::int32_t, 8> kOrder{0, 1, 4, 5, 2, 3, 6, 7};
        const auto order = hn::SetTableIndices(di, kOrder.data());
        both = hn::BitCast(WideI16(), hn::TableLookupLanes(hn::BitCast(di, both), order));
      }
      hn::StoreU(hn::DemoteTo(bytes, both), bytes, to + v * hn::MaxLanes(di));
    }
  }
}

/// Integers, as bytes.
template <std::int32_t kLevels>
struct IntegerWire {
  static HWY_INLINE BlockScale put_scale(const CodingBlock& block, std::size_t, std::byte* to) {
    const Quantum quantum = quantum_of(block.largest, static_cast<float>(kLevels));
    std::memcpy(to, &quantum.step, sizeof quantum.step);
    return {quantum.inverse, quantum.step};
  }
  static HWY_INLINE BlockScale get_scale(const std::byte* from) {
    BlockScale scale;
    std::memcpy(&scale.unscale, from, sizeof scale.unscale);
    return scale;
  }
  static HWY_INLINE Row put_row(const BlockScale& with,
                                const Row& x,
                                std::byte* payload,
                                std::size_t i,
                                const EncodeTask& task,
                                std::size_t index) {
    const F32 d;
    const VF32 rounder = hn::BitCast(d, hn::Set(U32(), kRounder));
    const VF32 step = hn::Set(d, with.unscale);
    Row rounded;
    Row said;
    for (std::size_t v = 0; v < kRowVectors; ++v) {
      const std::size_t at = index + v * hn::MaxLanes(d);
      rounded.v[v] = rounded_levels(x.v[v], with.scale, kLevels, task, at);
      said.v[v] = hn::Mul(hn::Sub(rounded.v[v], rounder), step);
    }
    store_levels(rounded, reinterpret_cast<std::int8_t*>(payload) + i);
    return said;
  }
  static HWY_INLINE VF32 get(const BlockScale& with, const std::byte* payload, std::size_t i) {
    const auto level = hn::LoadU(I8(), reinterpret_cast<const std::int8_t*>(payload) + i);
    return hn::Mul(hn::ConvertTo(F32(), hn::PromoteTo(I32(), level)), hn::Set(F32(), with.unscale));
  }
};

template <>
struct Wire<WireFormat::kInt8> : IntegerWire<127> {};

/// Two to a byte, the even one below; a block's lie as bytes while they are worked at.
template <>
struct Wire<WireFormat::kInt4> : IntegerWire<7> {
  static constexpr std::int8_t kZero = 8;

  static HWY_INLINE void pack(const std::byte* levels, std::byte* payload) {
    const WideU16 pairs;
    const hn::Rebind<std::uint8_t, WideU16> bytes;
    const auto* const from = reinterpret_cast<const std::int8_t*>(levels);
    auto* const to = reinterpret_cast<std::uint8_t*>(payload);
    for (std::size_t i = 0; i < kCodingBlock; i += hn::MaxLanes(WideI8())) {
      const auto codes = hn::Add(hn::Load(WideI8(), from + i), hn::Set(WideI8(), kZero));
      const auto both = hn::BitCast(pairs, codes);
      const auto joined =
          hn::And(hn::Or(both, hn::ShiftRight<4>(both)), hn::Set(pairs, std::uint16_t{0xff}));
      hn::StoreU(hn::DemoteTo(bytes, hn::BitCast(WideI16(), joined)), bytes, to + i / 2);
    }
  }
  static HWY_INLINE void unpack(const std::byte* payload, std::byte* levels) {
    const WideU16 pairs;
    const hn::Rebind<std::uint8_t, WideU16> bytes;
    const auto* const from = reinterpret_cast<const std::uint8_t*>(payload);
    auto* const to = reinterpret_cast<std::int8_t*>(levels);
    for (std::size_t i = 0; i < kCodingBlock; i += hn::MaxLanes(WideI8())) {
      const auto joined = hn::PromoteTo(pairs, hn::LoadU(bytes, from + i / 2));
      const auto both =
          hn::And(hn::Or(joined, hn::ShiftLeft<4>(joined)), hn::Set(pairs, std::uint16_t{0x0f0f}));
      const auto codes = hn::BitCast(WideI8(), both);
      hn::Store(hn::Sub(codes, hn::Set(WideI8(), kZero)), WideI8(), to + i);
    }
  }
};

/// One bit for each element, eight to a byte; a vector of four adds to the byte of the one before.
HWY_INLINE void put_mask(hn::Mask<F32> mask, std::byte* payload, std::size_t i) {
  std::array<std::uint8_t, 8> bits{};
  hn::StoreMaskBits(F32(), mask, bits.data());
  if (hn::Lanes(F32()) >= 8) {
    std::memcpy(payload + i / 8, bits.data(), hn::Lanes(F32()) / 8);
  } else if (i % 8 == 0) {
    payload[i / 8] = std::byte{bits[0]};
  } else {
    payload[i / 8] |= std::byte(bits[0] << (i % 8));
  }
}
HWY_INLINE hn::Mask<F32> get_mask(const std::byte* payload, std::size_t i) {
  std::array<std::uint8_t, 8> bits{};
  if (hn::Lanes(F32()) >= 8) {
    std::memcpy(bits.data(), payload + i / 8, hn::Lanes(F32()) / 8);
  } else {
    bits[0] = static_cast<std::uint8_t>(std::to_integer<unsigned>(payload[i / 8]) >> (i % 8));
  }
  return hn::LoadMaskBits(F32(), bits.data());
}

/// Of a whole block.
HWY_INLINE SignMeans sign_means_of_block(const CodingBlock& block) {
  const F32 d;
  const I32 di;
  const VF32 threshold = hn::Set(d, block.middle);
  Row below = zero_row();
  Row above = zero_row();
  VI32 count = hn::Zero(di);  // less one for each that is above
  for (std::size_t row = 0; row < kCodingBlock; row += kSumLanes) {
    for (std::size_t v = 0; v < kRowVectors; ++v) {
      const VF32 x = hn::Load(d, block.x.data() + row + v * hn::MaxLanes(d));
      const auto is_above = hn::Gt(x, threshold);
      above.v[v] = hn::Add(above.v[v], hn::IfThenElseZero(is_above, x));
      below.v[v] = hn::Add(below.v[v], hn::IfThenZeroElse(is_above, x));
      count = hn::Add(count, hn::VecFromMask(di, hn::RebindMask(di, is_above)));
    }
  }
  const auto count_above = static_cast<std::size_t>(-hn::GetLane(hn::SumOfLanes(di, count)));
  return sign_means(sum_of_row(below), sum_of_row(above), kCodingBlock, count_above);
}

template <>
struct Wire<WireFormat::kSign> {
  static HWY_INLINE BlockScale put_scale(const CodingBlock& block,
                                         std::size_t count,
                                         std::byte* to) {
    const SignMeans means =
        count == kCodingBlock ? sign_means_of_block(block) : sign_means_scalar(block, count);
    std::memcpy(to, &means.below, sizeof means.below);
    std::memcpy(to + sizeof means.below, &means.above, sizeof means.above);
    return {block.middle, brain_to_float(means.below), brain_to_float(means.above)};
  }
  static HWY_INLINE BlockScale get_scale(const std::byte* from) {
    SignMeans means;
    std::memcpy(&means.below, from, sizeof means.below);
    std::memcpy(&means.above, from + sizeof means.below, sizeof means.above);
    return {0, brain_to_float(means.below), brain_to_float(means.above)};
  }
  static HWY_INLINE VF32 put(const BlockScale& with,
                             VF32 x,
                             std::byte* payload,
                             std::size_t i,
                             const EncodeTask&,
                             std::size_t) {
    const auto is_above = hn::Gt(x, hn::Set(F32(), with.scale));
    put_mask(is_above, payload, i);
    return value_of(with, is_above);
  }
  static HWY_INLINE VF32 get(const BlockScale& with, const std::byte* payload, std::size_t i) {
    return value_of(with, get_mask(payload, i));
  }

 private:
  static HWY_INLINE VF32 value_of(const BlockScale& with, hn::Mask<F32> is_above) {
    return hn::IfThenElse(is_above, hn::Set(F32(), with.above), hn::Set(F32(), with.unscale));
  }
};

template <>
struct Wire<WireFormat::kVote> {
  static HWY_INLINE BlockScale put_scale(const CodingBlock&, std::size_t, std::byte*) { return {}; }
  static HWY_INLINE BlockScale get_scale(const std::byte*) { return {}; }
  static HWY_INLINE VF32 put(const BlockScale&,
                             VF32 x,
                             std::byte* payload,
                             std::size_t i,
                             const EncodeTask& task,
                             std::size_t index) {
    const F32 d;
    const I32 di;
    auto negative = hn::Lt(x, hn::Zero(d));
    const auto zero = hn::Eq(x, hn::Zero(d));
    if (HWY_UNLIKELY(!hn::AllFalse(d, zero))) {  // most gradients have few zeros: few coins
      const auto coin = hn::BitCast(di, chance_vector(task.seed, index));
      const auto tails = hn::RebindMask(d, hn::Lt(coin, hn::Zero(di)));
      negative = hn::Or(negative, hn::And(zero, tails));
    }
    put_mask(negative, payload, i);
    return value_of(negative);
  }
  static HWY_INLINE VF32 get(const BlockScale&, const std::byte* payload, std::size_t i) {
    return value_of(get_mask(payload, i));
  }

 private:
  static HWY_INLINE VF32 value_of(hn::Mask<F32> negative) {
    const VF32 one = hn::Set(F32(), 1.0F);
    return hn::IfThenElse(negative, hn::Neg(one), one);
  }
};

#endif  // HWY_SCALAR, HWY_HAVE_SCALABLE
}  // namespace HWY_NAMESPACE
}  // namespace stretto::kernels
HWY_AFTER_NAMESPACE();

#endif  // per target

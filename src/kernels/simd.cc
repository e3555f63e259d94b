// SPDX-License-Identifier: Apache-2.0

// The vector kernels.  Highway compiles this file once per instruction set; each function follows
// its namesake in arithmetic.hpp.  Elements that do not fill a vector go through the scalar loops
// (which were compiled for the baseline), so nothing is ever written twice and a destination may be
// a source.
#include "kernels/arithmetic.hpp"
#include "kernels/scalar_formats.hpp"
#include "kernels/table.hpp"

#include "stretto/types.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/simd_formats-inl.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The elements that fill whole vectors.
HWY_INLINE std::size_t whole(std::size_t n) {
  return n - n % hn::Lanes(F32());
}

template <typename To, typename From>
void cast_elements(std::byte* destination, const std::byte* source, std::size_t n) {
  const std::size_t end = whole(n);
  for (std::size_t i = 0; i < end; i += hn::Lanes(F32())) {
    To::store(destination, i, From::load(source, i));
  }
  for (std::size_t i = end; i < n; ++i) {
    To::Scalar::store(destination, i, From::Scalar::load(source, i));
  }
}

template <typename To>
void cast_from(DType from, std::byte* destination, const std::byte* source, std::size_t n) {
  switch (from) {
    case DType::kFloat32:
      return cast_elements<To, Float>(destination, source, n);
    case DType::kFloat16:
      return cast_elements<To, Half>(destination, source, n);
    case DType::kBFloat16:
      return cast_elements<To, Brain>(destination, source, n);
  }
}

void cast(DType to, std::byte* destination, DType from, const std::byte* source, std::size_t n) {
  switch (to) {
    case DType::kFloat32:
      return cast_from<Float>(from, destination, source, n);
    case DType::kFloat16:
      return cast_from<Half>(from, destination, source, n);
    case DType::kBFloat16:
      return cast_from<Brain>(from, destination, source, n);
  }
}

template <typename Format>
void accumulate_vectors(std::byte* destination, const std::byte* source, std::size_t n) {
  const std::size_t end = whole(n);
  for (std::size_t i = 0; i < end; i += hn::Lanes(F32())) {
    const VF32 sum = hn::Add(Format::load(destination, i), Format::load(source, i));
    Format::store_sum(destination, i, sum);
  }
  accumulate_elements<typename Format::Scalar>(destination, source, end, n);
}

void accumulate(DType dtype, std::byte* destination, const std::byte* source, std::size_t n) {
  switch (dtype) {
    case DType::kFloat32:
      return accumulate_vectors<Float>(destination, source, n);
    case DType::kFloat16:
      return accumulate_vectors<Half>(destination, source, n);
    case DType::kBFloat16:
      return accumulate_vectors<Brain>(destination, source, n);
  }
}

HWY_INLINE VF32 add_weighted_vector(VF32 total, float weight, VF32 value) {
  const VF32 product = hn::Mul(hn::Set(F32(), weight), value);
  return hn::Add(total, product);
}

/// From scratch to the end, over a number of sources that the compiler knows.  Copies of the
/// operation's fields, because it must assume that a store of bytes changes the originals.
template <typename Format, std::size_t kCount>
void sum_known(const spi::Operation& operation) {
  std::array<const std::byte*, kCount> source{};
  std::array<float, kCount> weight{};
  for (std::size_t r = 0; r < kCount; ++r) {
    source[r] = operation.source[r];
    weight[r] = operation.weight[r];
  }
  std::byte* const destination = operation.destination;
  const float scale = operation.scale;
  const std::size_t end = whole(operation.element_count);
  for (std::size_t i = 0; i < end; i += hn::Lanes(F32())) {
    VF32 total = hn::Mul(hn::Set(F32(), weight[0]), Format::load(source[0], i));
    for (std::size_t r = 1; r < kCount; ++r) {
      total = add_weighted_vector(total, weight[r], Format::load(source[r], i));
    }
    total = hn::Mul(total, hn::Set(F32(), scale));
    Format::store_sum(destination, i, total);
  }
  sum_elements<typename Format::Scalar>(operation, end);
}

/// Any number of sources, with or without an accumulator.
template <typename Format>
void sum_any(const spi::Operation& operation) {
  auto* accumulator = reinterpret_cast<std::byte*>(operation.accumulator);
  const bool continues = accumulator != nullptr && !operation.begins;
  const std::size_t first_added = continues ? 0 : 1;
  const std::size_t end = whole(operation.element_count);
  for (std::size_t i = 0; i < end; i += hn::Lanes(F32())) {
    VF32 total = continues ? Float::load(accumulator, i)
                           : hn::Mul(hn::Set(F32(), operation.weight[0]),
                                     Format::load(operation.source[0], i));
    for (std::size_t r = first_added; r < operation.source_count; ++r) {
      total = add_weighted_vector(total, operation.weight[r], Format::load(operation.source[r], i));
    }
    if (operation.finishes) {
      total = hn::Mul(total, hn::Set(F32(), operation.scale));
      Format::store_sum(operation.destination, i, total);
    } else {
      Float::store_sum(accumulator, i, total);
    }
  }
  sum_elements<typename Format::Scalar>(operation, end);
}

template <typename Format>
void sum_as(const spi::Operation& operation) {
  const bool continues = operation.accumulator != nullptr && !operation.begins;
  if (continues || !operation.finishes) {
    return sum_any<Format>(operation);
  }
  switch (operation.source_count) {
    case 1:
      return sum_known<Format, 1>(operation);
    case 2:
      return sum_known<Format, 2>(operation);
    case 3:
      return sum_known<Format, 3>(operation);
    case 4:
      return sum_known<Format, 4>(operation);
    default:
      return sum_any<Format>(operation);
  }
}

void weighted_sum(const spi::Operation& operation) {
  switch (operation.dtype) {
    case DType::kFloat32:
      return sum_as<Float>(operation);
    case DType::kFloat16:
      return sum_as<Half>(operation);
    case DType::kBFloat16:
      return sum_as<Brain>(operation);
  }
}

/// Counts lanes whose exponent is all ones.
template <typename Lane, typename Scalar>
std::size_t count_lanes(const std::byte* source, std::size_t n, Lane exponent) {
  const hn::ScalableTag<Lane> d;
  const auto mask = hn::Set(d, exponent);
  const std::size_t end = n - n % hn::Lanes(d);
  std::size_t count = 0;
  for (std::size_t i = 0; i < end; i += hn::Lanes(d)) {
    const auto bits = hn::LoadU(d, reinterpret_cast<const Lane*>(source + sizeof(Lane) * i));
    count += hn::CountTrue(d, hn::Eq(hn::And(bits, mask), mask));
  }
  return count + count_elements<Scalar>(source, end, n);
}

std::size_t count_non_finite(DType dtype, const std::byte* source, std::size_t n) {
  switch (dtype) {
    case DType::kFloat32:
      return count_lanes<std::uint32_t, ScalarFloat>(source, n, kExponentMask);
    case DType::kFloat16:
      return count_lanes<std::uint16_t, ScalarHalf>(source, n, std::uint16_t{0x7c00});
    case DType::kBFloat16:
      return count_lanes<std::uint16_t, ScalarBrain>(source, n, std::uint16_t{0x7f80});
  }
  return 0;
}

const CodingTable* coding_table();     // coding_simd.cc
const LowRankTable* low_rank_table();  // low_rank_simd.cc
const SelectTable* select_table();     // select_simd.cc

const Table* simd_table() {
  static const Table kTable{hwy::TargetName(HWY_TARGET),
                            cast,
                            accumulate,
                            weighted_sum,
                            count_non_finite,
                            coding_table(),
                            low_rank_table(),
                            select_table()};
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace stretto::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels {
namespace {
HWY_EXPORT(simd_table);
}

std::vector<const Table*> simd_tables() {
  // Asks for the table of each instruction set by allowing Highway that one only, for a moment.
  std::vector<const Table*> tables;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (target == HWY_SCALAR || target == HWY_EMU128) {
      continue;  // scalar_table() is that
    }
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    tables.push_back(HWY_DYNAMIC_DISPATCH(simd_table)());
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
  return tables;
}

}  // namespace stretto::kernels
#endif  // HWY_ONCE

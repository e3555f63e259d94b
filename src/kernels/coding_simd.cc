// SPDX-License-Identifier: Apache-2.0

// The vector kernels of coding.hpp.  Highway compiles this file once per instruction set; each
// function follows its namesake in coding_arithmetic.hpp.  All of them work on whole blocks; the
// last one of a segment, if it is shorter, goes through a copy that is filled up with zeros.
#include "kernels/coding_block.hpp"
#include "kernels/coding_table.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/coding_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>
#include "kernels/coding_wires-inl.hpp"
#include "kernels/simd_formats-inl.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE  // the latter's vectors cannot stand in an array
const CodingTable* coding_table() {
  return &scalar_coding_table();
}
#else

// --- one block

/// What will be read next.  It is fetched while a block is written, when memory has nothing else to
/// give.
struct Ahead {
  const std::byte* values;
  const float* residual;
  std::size_t value_bytes;
};

/// Where a block's parts go.
struct Target {
  std::byte* scale;
  std::byte* payload;
  float* left;               ///< [kCodingBlock]; not looked at without feedback
  bool past_caches = false;  ///< left is aligned and goes to memory at once
};

/// Writes the row of elements that begins at i of the block, and at index of the segment.
template <WireFormat kFormat>
HWY_INLINE Row put_row(const BlockScale& with,
                       const Row& x,
                       std::byte* payload,
                       std::size_t i,
                       const EncodeTask& task,
                       std::size_t index) {
  if constexpr (kFormat == WireFormat::kInt8 || kFormat == WireFormat::kInt4) {
    return Wire<kFormat>::put_row(with, x, payload, i, task, index);
  } else {
    Row said;
    for (std::size_t v = 0; v < kRowVectors; ++v) {
      const std::size_t at = v * hn::MaxLanes(F32());
      said.v[v] = Wire<kFormat>::put(with, x.v[v], payload, i + at, task, index + at);
    }
    return said;
  }
}

/// Returns the sum of squares of what the block leaves.
template <WireFormat kFormat, bool kFeedback>
HWY_INLINE float write_block(const EncodeTask& task,
                             const CodingBlock& block,
                             std::size_t first,
                             std::size_t count,
                             const Target& to,
                             const Ahead& ahead) {
  const BlockScale with = Wire<kFormat>::put_scale(block, count, to.scale);
  HWY_ALIGN std::array<std::byte, kCodingBlock> levels;
  std::byte* const payload = kFormat == WireFormat::kInt4 ? levels.data() : to.payload;
  Row squares = zero_row();
  for (std::size_t i = 0; i < kCodingBlock; i += kSumLanes) {
    hwy::Prefetch(ahead.values + i * ahead.value_bytes);
    if constexpr (kFeedback) {
      hwy::Prefetch(ahead.residual + i);
    }
    Row x;
    for (std::size_t v = 0; v < kRowVectors; ++v) {
      x.v[v] = hn::Load(F32(), block.x.data() + i + v * hn::MaxLanes(F32()));
    }
    const Row said = put_row<kFormat>(with, x, payload, i, task, first + i);
    if constexpr (kFeedback) {
      for (std::size_t v = 0; v < kRowVectors; ++v) {
        const VF32 left = hn::Sub(x.v[v], said.v[v]);
        float* const at = to.left + i + v * hn::MaxLanes(F32());
        if (to.past_caches) {
          hn::Stream(left, F32(), at);
        } else {
          hn::StoreU(left, F32(), at);
        }
        squares.v[v] = hn::Add(squares.v[v], hn::Mul(left, left));
      }
    }
  }
  if constexpr (kFormat == WireFormat::kInt4) {
    Wire<kFormat>::pack(levels.data(), to.payload);
  }
  return kFeedback ? sum_of_row(squares) : 0.0F;
}

// --- a segment

/// Where a block's scale and payload go.
template <WireFormat kFormat>
HWY_INLINE Target target_of(const EncodeTask& task, std::size_t first, float* left) {
  const std::size_t n = task.element_count;
  return {task.wire + first / kCodingBlock * scale_bytes(kFormat),
          task.wire + payload_offset(kFormat, n) + first * element_bits(kFormat) / 8,
          left,
          false};
}

/// What a segment leaves is read a step later, when a backward pass has long gone through the
/// caches: it goes to memory past them, and nothing is read there before.  (One core, 64 MB,
/// `stretto bench codec`: int8 encodes at 6.2 GB/s so instead of 4.3, sign at 6.2 instead of 4.5.)
bool goes_past_caches(const EncodeTask& task) {
  constexpr std::size_t kLeast = 8192;  // what is shorter belongs to small models, which stay there
  return task.left != task.residual && task.element_count >= kLeast &&
         reinterpret_cast<std::uintptr_t>(task.left) % (sizeof(float) * hn::MaxLanes(F32())) == 0;
}

/// The last block, if it is short.
template <WireFormat kFormat>
void encode_rest(const EncodeTask& task, std::size_t first, EncodeFacts& facts) {
  const std::size_t count = task.element_count - first;
  CodingBlock block;
  read_block_scalar(task, first, count, block);
  std::array<std::byte, 2 * kCodingBlock> payload{};
  HWY_ALIGN std::array<float, kCodingBlock> left;
  const Target target = target_of<kFormat>(task, first, left.data());
  write_block<kFormat, true>(task,
                             block,
                             first,
                             count,
                             {target.scale, payload.data(), left.data(), false},
                             {payload.data(), left.data(), 1});
  // What lies behind the last element in its byte is zero.
  const std::size_t bits = count * element_bits(kFormat);
  if (bits % 8 != 0) {
    payload[bits / 8] &= static_cast<std::byte>((1U << (bits % 8)) - 1U);
  }
  std::memcpy(target.payload, payload.data(), (bits + 7) / 8);
  facts.refused += block.refused;
  if (kFormat == WireFormat::kVote) {
    facts.magnitudes += static_cast<double>(block.magnitudes);
  }
  facts.value_squares += static_cast<double>(block.value_squares);
  if (task.left != nullptr) {
    std::array<float, kSumLanes> squares{};
    for (std::size_t i = 0; i < count; ++i) {
      task.left[first + i] = left[i];
      squares[i % kSumLanes] = squares[i % kSumLanes] + left[i] * left[i];
    }
    facts.left_squares += static_cast<double>(sum_of_lanes(squares.data()));
  }
}

template <WireFormat kFormat, typename Format, bool kFeedback>
EncodeFacts encode_segment(const EncodeTask& task) {
  EncodeFacts facts;
  CodingBlock block;
  HWY_ALIGN std::array<float, kCodingBlock> left;
  HWY_ALIGN static constexpr std::array<float, kCodingBlock> kNoResidual{};
  const bool past_caches = kFeedback && task.left != nullptr && goes_past_caches(task);
  std::size_t first = 0;
  for (; first + kCodingBlock <= task.element_count; first += kCodingBlock) {
    const Source from{task.values + first * size_of(task.dtype),
                      task.residual == nullptr ? kNoResidual.data() : task.residual + first,
                      task.scale,
                      task.factor};
    if (!read_block<kFormat, Format, kFeedback>(from, block)) {
      read_block_scalar(task, first, kCodingBlock, block);
    }
    Target to =
        target_of<kFormat>(task, first, task.left == nullptr ? left.data() : task.left + first);
    to.past_caches = past_caches;
    const std::size_t further = first + 2 * kCodingBlock <= task.element_count ? kCodingBlock : 0;
    const Ahead ahead{from.values + further * size_of(task.dtype),
                      task.residual == nullptr ? from.residual : from.residual + further,
                      size_of(task.dtype)};
    const float squares =
        write_block<kFormat, kFeedback>(task, block, first, kCodingBlock, to, ahead);
    facts.refused += block.refused;
    if (kFormat == WireFormat::kVote) {
      facts.magnitudes += static_cast<double>(block.magnitudes);
    }
    facts.value_squares += static_cast<double>(block.value_squares);
    if (kFeedback && task.left != nullptr) {
      facts.left_squares += static_cast<double>(squares);
    }
  }
  if (past_caches) {
    hwy::FlushStream();  // before anybody is told that they are there
  }
  if (first < task.element_count) {
    encode_rest<kFormat>(task, first, facts);
  }
  return facts;
}

template <WireFormat kFormat, typename Format>
EncodeFacts encode_values(const EncodeTask& task) {
  return task.residual == nullptr && task.left == nullptr
             ? encode_segment<kFormat, Format, false>(task)
             : encode_segment<kFormat, Format, true>(task);
}

template <WireFormat kFormat>
EncodeFacts encode_as(const EncodeTask& task) {
  switch (task.dtype) {
    case DType::kFloat32:
      return encode_values<kFormat, Float>(task);
    case DType::kFloat16:
      return encode_values<kFormat, Half>(task);
    case DType::kBFloat16:
      return encode_values<kFormat, Brain>(task);
  }
  return {};
}

/// Calls `take(i, what the wire says of the vector at i)` for a block whose payload is whole.
template <WireFormat kFormat, typename Take>
HWY_INLINE void read_wire(const std::byte* scale, const std::byte* payload, const Take& take) {
  const BlockScale with = Wire<kFormat>::get_scale(scale);
  HWY_ALIGN std::array<std::byte, kCodingBlock> levels;
  if constexpr (kFormat == WireFormat::kInt4) {
    Wire<kFormat>::unpack(payload, levels.data());
    payload = levels.data();
  }
  for (std::size_t i = 0; i < kCodingBlock; i += hn::Lanes(F32())) {
    take(i, Wire<kFormat>::get(with, payload, i));
  }
}

/// Calls `take(first, count, scale, payload)` for each block; the payload can be read as a whole
/// one.
template <WireFormat kFormat, typename Take>
HWY_INLINE void each_block(const std::byte* wire, std::size_t n, const Take& take) {
  const std::byte* scale = wire;
  const std::byte* payload = wire + payload_offset(kFormat, n);
  std::size_t first = 0;
  for (; first + kCodingBlock <= n; first += kCodingBlock) {
    take(first, kCodingBlock, scale, payload);
    scale += scale_bytes(kFormat);
    payload += kCodingBlock * element_bits(kFormat) / 8;
  }
  if (first < n) {
    std::array<std::byte, 2 * kCodingBlock> rest{};
    std::memcpy(rest.data(), payload, ((n - first) * element_bits(kFormat) + 7) / 8);
    take(first, n - first, scale, rest.data());
  }
}

template <WireFormat kFormat>
void absorb_as(const std::byte* wire, std::size_t n, float weight, float* sum) {
  const VF32 by = hn::Set(F32(), weight);
  each_block<kFormat>(wire, n, [&](std::size_t first, std::size_t count, auto scale, auto payload) {
    if (count == kCodingBlock) {
      read_wire<kFormat>(scale, payload, [&](std::size_t i, VF32 value) {
        float* const at = sum + first + i;
        hn::StoreU(hn::Add(hn::LoadU(F32(), at), hn::Mul(by, value)), F32(), at);
      });
      return;
    }
    HWY_ALIGN std::array<float, kCodingBlock> values;
    read_wire<kFormat>(scale, payload, [&](std::size_t i, VF32 value) {
      hn::Store(value, F32(), values.data() + i);
    });
    for (std::size_t i = 0; i < count; ++i) {
      sum[first + i] = add_weighted(sum[first + i], weight, values[i]);
    }
  });
}

template <WireFormat kFormat, typename Format>
void decode_values(const std::byte* wire, std::size_t n, float scale_by, std::byte* result) {
  const VF32 by = hn::Set(F32(), scale_by);
  each_block<kFormat>(wire, n, [&](std::size_t first, std::size_t count, auto scale, auto payload) {
    HWY_ALIGN std::array<float, kCodingBlock> values;
    const auto to_result = [&](std::size_t i, VF32 value) {
      Format::store(result, first + i, within<Format>(hn::Mul(value, by)));
    };
    const auto to_values = [&](std::size_t i, VF32 value) {
      hn::Store(hn::Mul(value, by), F32(), values.data() + i);
    };
    if (count == kCodingBlock) {
      return read_wire<kFormat>(scale, payload, to_result);
    }
    read_wire<kFormat>(scale, payload, to_values);
    for (std::size_t i = 0; i < count; ++i) {
      const float value = values[i];
      Format::Scalar::store(
          result, first + i, std::is_same_v<Format, Half> ? within_half(value) : value);
    }
  });
}

template <WireFormat kFormat>
void decode_as(const std::byte* wire, std::size_t n, float scale, DType dtype, std::byte* result) {
  switch (dtype) {
    case DType::kFloat32:
      return decode_values<kFormat, Float>(wire, n, scale, result);
    case DType::kFloat16:
      return decode_values<kFormat, Half>(wire, n, scale, result);
    case DType::kBFloat16:
      return decode_values<kFormat, Brain>(wire, n, scale, result);
  }
}

/// Calls `call` with the format as a constant.
template <typename Call>
HWY_INLINE auto with_format(WireFormat format, const Call& call) {
  switch (format) {
    case WireFormat::kHalf:
      return call(std::integral_constant<WireFormat, WireFormat::kHalf>());
    case WireFormat::kBrain:
      return call(std::integral_constant<WireFormat, WireFormat::kBrain>());
    case WireFormat::kInt8:
      return call(std::integral_constant<WireFormat, WireFormat::kInt8>());
    case WireFormat::kInt4:
      return call(std::integral_constant<WireFormat, WireFormat::kInt4>());
    case WireFormat::kSign:
      return call(std::integral_constant<WireFormat, WireFormat::kSign>());
    case WireFormat::kVote:
      break;
  }
  return call(std::integral_constant<WireFormat, WireFormat::kVote>());
}

EncodeFacts encode(WireFormat format, const EncodeTask& task) {
  return with_format(format, [&](auto constant) { return encode_as<constant()>(task); });
}

void absorb(WireFormat format, const std::byte* wire, std::size_t n, float weight, float* sum) {
  with_format(format, [&](auto constant) { absorb_as<constant()>(wire, n, weight, sum); });
}

void decode(WireFormat format,
            const std::byte* wire,
            std::size_t n,
            float scale,
            DType dtype,
            std::byte* result) {
  with_format(format, [&](auto constant) { decode_as<constant()>(wire, n, scale, dtype, result); });
}

const CodingTable* coding_table() {
  static constexpr CodingTable kTable{encode, absorb, decode};
  return &kTable;
}

#endif  // HWY_SCALAR || HWY_HAVE_SCALABLE
}  // namespace HWY_NAMESPACE
}  // namespace stretto::kernels
HWY_AFTER_NAMESPACE();

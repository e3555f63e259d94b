// SPDX-License-Identifier: Apache-2.0

// One element at a time: what the vector kernels are held against.
#include "kernels/coding_block.hpp"
#include "kernels/coding_table.hpp"

#include <array>
#include <cstring>

namespace stretto::kernels {
namespace {

template <typename T>
T get(const std::byte* from, std::size_t i) noexcept {
  T value{};
  std::memcpy(&value, from + i * sizeof value, sizeof value);
  return value;
}
template <typename T>
void put(std::byte* to, std::size_t i, T value) noexcept {
  std::memcpy(to + i * sizeof value, &value, sizeof value);
}

/// Element i of a payload of four or of one bits each.
unsigned get_bits(const std::byte* payload, std::size_t i, unsigned width) noexcept {
  const std::size_t at = i * width;
  return (std::to_integer<unsigned>(payload[at / 8]) >> (at % 8)) & ((1U << width) - 1U);
}
/// The payload was zero before.
void put_bits(std::byte* payload, std::size_t i, unsigned width, unsigned bits) noexcept {
  const std::size_t at = i * width;
  payload[at / 8] |= static_cast<std::byte>(bits << (at % 8));
}

void store(DType dtype, std::byte* to, std::size_t i, float value) noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return ScalarFloat::store(to, i, value);
    case DType::kFloat16:
      return ScalarHalf::store(to, i, within_half(value));
    case DType::kBFloat16:
      return ScalarBrain::store(to, i, value);
  }
}

/// Writes a block's scale.
void put_scale(WireFormat format,
               const CodingBlock& block,
               std::size_t b,
               std::size_t count,
               std::byte* wire) noexcept {
  switch (format) {
    case WireFormat::kHalf:
      return put(wire, b, half_block_exponent(block.largest));
    case WireFormat::kInt8:
    case WireFormat::kInt4:
      return put(wire, b, quantum_of(block.largest, static_cast<float>(levels_of(format))).step);
    case WireFormat::kSign: {
      const SignMeans means = sign_means_scalar(block, count);
      put(wire, 2 * b, means.below);
      return put(wire, 2 * b + 1, means.above);
    }
    case WireFormat::kBrain:
    case WireFormat::kVote:
      return;
  }
}

/// Element i, in block b, as the wire says it.
float element(WireFormat format, const std::byte* wire, std::size_t n, std::size_t i) noexcept {
  const std::byte* payload = wire + payload_offset(format, n);
  const std::size_t b = i / kCodingBlock;
  switch (format) {
    case WireFormat::kHalf:
      return half_to_float(get<std::uint16_t>(payload, i)) *
             half_block_unscale(get<std::uint8_t>(wire, b));
    case WireFormat::kBrain:
      return brain_to_float(get<std::uint16_t>(payload, i));
    case WireFormat::kInt8:
      return static_cast<float>(get<std::int8_t>(payload, i)) * get<float>(wire, b);
    case WireFormat::kInt4:
      return static_cast<float>(static_cast<int>(get_bits(payload, i, 4)) - 8) *
             get<float>(wire, b);
    case WireFormat::kSign:
      return brain_to_float(get<std::uint16_t>(wire, 2 * b + get_bits(payload, i, 1)));
    case WireFormat::kVote:
      return get_bits(payload, i, 1) != 0 ? -1.0F : 1.0F;
  }
  return 0;
}

/// Writes element i.
void put_element(WireFormat format,
                 const EncodeTask& task,
                 const CodingBlock& block,
                 std::size_t i) noexcept {
  std::byte* payload = task.wire + payload_offset(format, task.element_count);
  const float x = block.x[i % kCodingBlock];
  switch (format) {
    case WireFormat::kHalf:
      return put(
          payload, i, half_of_scaled(x * half_block_scale(half_block_exponent(block.largest))));
    case WireFormat::kBrain:
      return put(payload, i, float_to_brain(x));
    case WireFormat::kInt8:
    case WireFormat::kInt4: {
      const std::int32_t levels = levels_of(format);
      const float inverse = quantum_of(block.largest, static_cast<float>(levels)).inverse;
      const std::int32_t level = task.random
                                     ? random_level(x, inverse, chance(task.seed, i), levels)
                                     : nearest_level(x, inverse);
      return format == WireFormat::kInt8
                 ? put(payload, i, static_cast<std::int8_t>(level))
                 : put_bits(payload, i, 4, static_cast<unsigned>(level + 8));
    }
    case WireFormat::kSign:
      return put_bits(payload, i, 1, x > block.middle ? 1U : 0U);
    case WireFormat::kVote:
      return put_bits(payload, i, 1, vote_of(x, chance(task.seed, i)));
  }
}

EncodeFacts encode(WireFormat format, const EncodeTask& task) {
  const std::size_t n = task.element_count;
  EncodeFacts facts;
  if (n > 0) {
    std::memset(task.wire, 0, length_of_wire(format, n));
  }
  CodingBlock block;
  for (std::size_t first = 0; first < n; first += kCodingBlock) {
    const std::size_t count = std::min(kCodingBlock, n - first);
    read_block_scalar(task, first, count, block);
    put_scale(format, block, first / kCodingBlock, count, task.wire);
    std::array<float, kSumLanes> squares{};
    for (std::size_t i = first; i < first + count; ++i) {
      put_element(format, task, block, i);
      if (task.left != nullptr) {
        const float left = block.x[i - first] - element(format, task.wire, n, i);
        task.left[i] = left;
        squares[i % kSumLanes] = squares[i % kSumLanes] + left * left;
      }
    }
    facts.refused += block.refused;
    facts.magnitudes += format == WireFormat::kVote ? static_cast<double>(block.magnitudes) : 0;
    facts.value_squares += static_cast<double>(block.value_squares);
    facts.left_squares += static_cast<double>(sum_of_lanes(squares.data()));
  }
  return facts;
}

void absorb(WireFormat format, const std::byte* wire, std::size_t n, float weight, float* sum) {
  for (std::size_t i = 0; i < n; ++i) {
    sum[i] = add_weighted(sum[i], weight, element(format, wire, n, i));
  }
}

void decode(WireFormat format,
            const std::byte* wire,
            std::size_t n,
            float scale,
            DType dtype,
            std::byte* result) {
  for (std::size_t i = 0; i < n; ++i) {
    store(dtype, result, i, element(format, wire, n, i) * scale);
  }
}

}  // namespace

const CodingTable& scalar_coding_table() noexcept {
  static constexpr CodingTable kTable{encode, absorb, decode};
  return kTable;
}

}  // namespace stretto::kernels

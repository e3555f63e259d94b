// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/arithmetic.hpp"

#include "stretto/spi/device.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

// Loops over single elements: the whole of the scalar kernels, and the last few elements of the
// vector kernels, which do not fill a vector.

namespace stretto::kernels {

/// Element i of raw memory as a float, and its way back.
struct ScalarFloat {
  static float load(const std::byte* from, std::size_t i) noexcept {
    float value = 0;
    std::memcpy(&value, from + 4 * i, sizeof value);
    return value;
  }
  static void store(std::byte* to, std::size_t i, float value) noexcept {
    std::memcpy(to + 4 * i, &value, sizeof value);
  }
};

template <float (*kWiden)(std::uint16_t) noexcept, std::uint16_t (*kNarrow)(float) noexcept>
struct ScalarNarrow {
  static float load(const std::byte* from, std::size_t i) noexcept {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, sizeof bits);
    return kWiden(bits);
  }
  static void store(std::byte* to, std::size_t i, float value) noexcept {
    const std::uint16_t bits = kNarrow(value);
    std::memcpy(to + 2 * i, &bits, sizeof bits);
  }
};
using ScalarHalf = ScalarNarrow<half_to_float, float_to_half>;
using ScalarBrain = ScalarNarrow<brain_to_float, float_to_brain>;

template <typename Format>
void accumulate_elements(std::byte* destination,
                         const std::byte* source,
                         std::size_t first,
                         std::size_t n) noexcept {
  for (std::size_t i = first; i < n; ++i) {
    const float sum = Format::load(destination, i) + Format::load(source, i);
    Format::store(destination, i, canonical(sum));
  }
}

template <typename Format>
void sum_elements(const spi::Operation& operation, std::size_t first) noexcept {
  auto* accumulator = reinterpret_cast<std::byte*>(operation.accumulator);
  const bool continues = accumulator != nullptr && !operation.begins;
  for (std::size_t i = first; i < operation.element_count; ++i) {
    float total = 0;
    std::size_t r = 0;
    if (continues) {
      total = ScalarFloat::load(accumulator, i);
    } else {
      total = operation.weight[0] * Format::load(operation.source[0], i);
      r = 1;
    }
    for (; r < operation.source_count; ++r) {
      total = add_weighted(total, operation.weight[r], Format::load(operation.source[r], i));
    }
    if (operation.finishes) {
      Format::store(operation.destination, i, canonical(total * operation.scale));
    } else {
      ScalarFloat::store(accumulator, i, canonical(total));
    }
  }
}

template <typename Format>
std::size_t count_elements(const std::byte* source, std::size_t first, std::size_t n) noexcept {
  std::size_t count = 0;
  for (std::size_t i = first; i < n; ++i) {
    const bool non_finite = (bits_of(Format::load(source, i)) & kExponentMask) == kExponentMask;
    count += non_finite ? 1U : 0U;
  }
  return count;
}

}  // namespace stretto::kernels

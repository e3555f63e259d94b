// SPDX-License-Identifier: Apache-2.0
#include "payload.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

namespace stretto::cli {
namespace {

constexpr std::size_t kStride = 16;  // elements between two steps' places: a cache line

/// Mixes the bits of a number (the finaliser of a multiplicative hash).
std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 31;
  x *= 0x9E3779B97F4A7C15U;
  x ^= x >> 29;
  x *= 0xD1B54A32D192ED03U;
  return x ^ (x >> 32);
}

/// What all elements of one rank's parameter have in common.
std::uint32_t base_of(std::uint64_t seed, std::size_t rank, std::size_t parameter) {
  return static_cast<std::uint32_t>(mix(mix(mix(seed) + rank) + parameter));
}

float value_at(std::uint32_t base, std::size_t place) {
  std::uint32_t x = static_cast<std::uint32_t>(place) * 0x9E3779B1U + base;
  x ^= x >> 15;
  x *= 0x85EBCA77U;
  x ^= x >> 13;
  return static_cast<float>(static_cast<std::int32_t>(x & 4095U));
}

std::size_t first_place(std::uint64_t step) {
  return static_cast<std::size_t>(step % Payload::kPeriod) * kStride;
}

}  // namespace

Payload::Payload(std::uint64_t seed,
                 std::size_t rank,
                 std::size_t ranks,
                 const std::vector<std::size_t>& elements)
    : seed_(seed), ranks_(ranks), elements_(elements) {
  memory_.reserve(elements_.size());
  for (std::size_t p = 0; p < elements_.size(); ++p) {
    std::vector<float> memory(elements_[p] + (kPeriod - 1) * kStride);
    const std::uint32_t base = base_of(seed_, rank, p);
    for (std::size_t place = 0; place < memory.size(); ++place) {
      memory[place] = value_at(base, place);
    }
    memory_.push_back(std::move(memory));
  }
}

const std::byte* Payload::gradient(std::size_t parameter, std::uint64_t step) const {
  return reinterpret_cast<const std::byte*>(memory_[parameter].data() + first_place(step));
}

std::size_t Payload::mismatches(std::size_t parameter,
                                std::uint64_t step,
                                const std::byte* result,
                                float bound) const {
  const std::size_t first = first_place(step);
  const std::size_t count = elements_[parameter];
  const auto factor = static_cast<float>(1.0 / static_cast<double>(ranks_));
  std::array<float, 4096> sums{};
  std::array<float, 4096> found{};
  std::size_t wrong = 0;
  for (std::size_t done = 0; done < count; done += sums.size()) {
    const std::span<float> block(sums.data(), std::min(sums.size(), count - done));
    std::fill(block.begin(), block.end(), 0.0F);
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      const std::uint32_t base = base_of(seed_, rank, parameter);
      for (std::size_t i = 0; i < block.size(); ++i) {
        block[i] += value_at(base, first + done + i);
      }
    }
    std::memcpy(found.data(), result + done * sizeof(float), block.size_bytes());
    for (std::size_t i = 0; i < block.size(); ++i) {
      if (bound > 0) {
        wrong += std::abs(found[i] - block[i] * factor) <= bound ? 0 : 1;  // also if not a number
        continue;
      }
      // Bits, so that a NaN is not taken for a match of nothing and -0 not for 0.
      wrong +=
          std::bit_cast<std::uint32_t>(found[i]) != std::bit_cast<std::uint32_t>(block[i] * factor)
              ? 1
              : 0;
    }
  }
  return wrong;
}

}  // namespace stretto::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace stretto::engine {

/// Flags of all ranks in few floats that are added up: how many ranks have set each.
///
/// A flag is a digit to the base ranks + 1, so that no sum carries, and a float32 holds as many
/// digits as stay below 2^24, where whole numbers are exact in whatever order they are added.
///
/// Threading: immutable.
class FooterCode {
 public:
  explicit FooterCode(std::size_t ranks) noexcept : base_(ranks + 1) {
    std::uint64_t most = base_;  // one more than the largest sum
    while (most * base_ <= kExact) {
      most *= base_;
      ++digits_;
    }
  }

  std::size_t floats(std::size_t flags) const noexcept { return (flags + digits_ - 1) / digits_; }

  static void clear(std::span<float> values) noexcept {
    std::fill(values.begin(), values.end(), 0.0F);
  }
  /// Sets a flag that was not set.
  void set(std::span<float> values, std::size_t flag) const noexcept {
    values[flag / digits_] += static_cast<float>(unit(flag));
  }
  /// How many ranks have set a flag, in the sum of their floats.
  std::size_t count(std::span<const float> sums, std::size_t flag) const noexcept {
    return static_cast<std::size_t>(sums[flag / digits_]) / unit(flag) % base_;
  }

 private:
  static constexpr std::uint64_t kExact = std::uint64_t{1} << 24U;

  std::size_t unit(std::size_t flag) const noexcept {
    std::size_t unit = 1;
    for (std::size_t i = flag % digits_; i > 0; --i) {
      unit *= base_;
    }
    return unit;
  }

  std::size_t base_;
  std::size_t digits_ = 1;
};

}  // namespace stretto::engine

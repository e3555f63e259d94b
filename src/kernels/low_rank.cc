// SPDX-License-Identifier: Apache-2.0

// What is said of low_rank.hpp's factors alone, which are small: the same code on every processor.
#include "kernels/low_rank.hpp"

#include "kernels/coding_arithmetic.hpp"
#include "kernels/float_environment.hpp"
#include "kernels/scalar_formats.hpp"
#include "kernels/table.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace stretto::kernels {
namespace {

constexpr std::uint32_t kFactorLimit = (127U + 100U) << 23U;

/// Float64 because the squares of what float32 holds leave its range.
double dot(const float* a, const float* b, std::size_t n) noexcept {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  for (; i < n; ++i) {
    sums[i % kLanes] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  double sum = 0;
  for (const double lane : sums) {
    sum += lane;
  }
  return sum;
}

/// column -= along * (along . column)
void take_out(const float* along, std::size_t n, float* column) noexcept {
  const double length = dot(along, column, n);
  for (std::size_t i = 0; i < n; ++i) {
    column[i] =
        static_cast<float>(static_cast<double>(column[i]) - length * static_cast<double>(along[i]));
  }
}

/// A column of length 1, or of zeros if it is not longer than `least`.
void normalize(double least, std::size_t n, float* column) noexcept {
  const double length = std::sqrt(dot(column, column, n));
  const double by = length > least ? 1 / length : 0;
  for (std::size_t i = 0; i < n; ++i) {
    column[i] = static_cast<float>(static_cast<double>(column[i]) * by);
  }
}

/// A number for each index, as good as random (Steele et al. 2014, "Fast splittable pseudorandom
/// number generators").
std::uint64_t random_word(std::uint64_t seed, std::uint64_t index) noexcept {
  std::uint64_t word = seed + (index + 1) * 0x9e3779b97f4a7c15U;
  word = (word ^ (word >> 30U)) * 0xbf58476d1ce4e5b9U;
  word = (word ^ (word >> 27U)) * 0x94d049bb133111ebU;
  return word ^ (word >> 31U);
}

/// The sum of eight uniform numbers of 16 bits, with mean 0 and variance 1: within 1 % of a normal
/// distribution.  No logarithm: libraries round it differently.
float normal_number(std::uint64_t seed, std::uint64_t index) noexcept {
  std::int32_t sum = 0;
  for (std::uint64_t half = 0; half < 2; ++half) {
    std::uint64_t word = random_word(seed, 2 * index + half);
    for (unsigned part = 0; part < 4; ++part, word >>= 16U) {
      sum += static_cast<std::int32_t>(word & 0xffffU);
    }
  }
  constexpr std::int32_t kMean = 4 * 0xffff;
  constexpr float kInverseDeviation = 0x1.3988ep-16F;  // 1 / (2^16 sqrt(8 / 12))
  return static_cast<float>(sum - kMean) * kInverseDeviation;
}

}  // namespace

ProjectFacts project(const LowRankShape& shape,
                     const LowRankSource& source,
                     const float* q,
                     std::byte* p,
                     float* left) noexcept {
  const FloatEnvironment environment;
  return active_table().low_rank->project(shape, source, q, p, left);
}

void back_project(const LowRankShape& shape,
                  const LowRankSource& source,
                  const float* p,
                  std::byte* q) noexcept {
  const FloatEnvironment environment;
  active_table().low_rank->back_project(shape, source, p, q);
}

double back_project_and_leave(const LowRankShape& shape,
                              float* left,
                              const float* p,
                              std::byte* q) noexcept {
  const FloatEnvironment environment;
  return active_table().low_rank->back_project_and_leave(shape, left, p, q);
}

void multiply(const LowRankShape& shape,
              const float* p,
              const std::byte* q,
              DType dtype,
              std::byte* result) noexcept {
  const FloatEnvironment environment;
  active_table().low_rank->multiply(shape, p, q, dtype, result);
}

void orthonormalize(const LowRankShape& shape, float* p) noexcept {
  const FloatEnvironment environment;
  // What is left of a column in the span of the others is its rounding, 2^-24 of each element.
  constexpr double kNothingNew = 1e-6;
  const std::size_t n = shape.rows;
  for (std::size_t k = 0; k < shape.rank; ++k) {
    float* const column = p + k * n;
    const double before = std::sqrt(dot(column, column, n));
    for (unsigned pass = 0; pass < 2; ++pass) {
      for (std::size_t earlier = 0; earlier < k; ++earlier) {
        take_out(p + earlier * n, n, column);
      }
    }
    normalize(before * kNothingNew, n, column);
  }
}

void keep_directions(const LowRankShape& shape, const std::byte* q, float* next) noexcept {
  const FloatEnvironment environment;
  for (std::size_t k = 0; k < shape.rank; ++k) {
    const std::size_t first = k * shape.columns;
    float largest = 0;
    for (std::size_t j = first; j < first + shape.columns; ++j) {
      next[j] = ScalarFloat::load(q, j);
      largest = std::max(largest, std::abs(next[j]));
    }
    const double by = largest > 0 ? std::ldexp(1.0, -std::ilogb(largest)) : 0;
    for (std::size_t j = first; j < first + shape.columns; ++j) {
      next[j] = static_cast<float>(static_cast<double>(next[j]) * by);
    }
  }
}

void begin_directions(const LowRankShape& shape,
                      std::uint64_t seed,
                      const float* state,
                      float* q) noexcept {
  const FloatEnvironment environment;
  for (std::size_t k = 0; k < shape.rank; ++k) {
    const float* const column = state + k * shape.columns;
    float* const to = q + k * shape.columns;
    std::copy_n(column, shape.columns, to);
    if (std::any_of(column, column + shape.columns, [](float value) { return value != 0; })) {
      continue;
    }
    for (std::size_t j = 0; j < shape.columns; ++j) {
      to[j] = normal_number(seed, k * shape.columns + j);
    }
  }
}

bool is_factor(const std::byte* factor, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    if ((bits_of(ScalarFloat::load(factor, i)) & 0x7fffffffU) > kFactorLimit) {
      return false;
    }
  }
  return true;
}

void scale_factor(const float* sum, std::size_t n, float scale, std::byte* factor) noexcept {
  const FloatEnvironment environment;
  for (std::size_t i = 0; i < n; ++i) {
    ScalarFloat::store(factor, i, sum[i] * scale);
  }
}

void absorb_factor(const std::byte* factor, std::size_t n, float weight, float* sum) noexcept {
  const FloatEnvironment environment;
  for (std::size_t i = 0; i < n; ++i) {
    sum[i] = add_weighted(sum[i], weight, ScalarFloat::load(factor, i));
  }
}

}  // namespace stretto::kernels

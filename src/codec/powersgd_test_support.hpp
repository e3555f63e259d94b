// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/codec.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <vector>

// Matrices, and what a rank keeps for one, for tests of PowerSGD.

namespace stretto::codec {

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;

inline spi::CodecSegment matrix(std::size_t rows, std::size_t columns) {
  return {DType::kFloat32, rows * columns, columns, 42};
}

inline std::span<const std::byte> bytes_of(const Floats& floats) {
  return std::as_bytes(std::span(floats));
}

inline Floats random_matrix(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(n);
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

/// The product of two random factors.
inline Floats matrix_of_rank(std::size_t rows, std::size_t columns, std::size_t rank) {
  const Floats p = random_matrix(rows * rank, 1);
  const Floats q = random_matrix(columns * rank, 2);
  Floats m(rows * columns);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      for (std::size_t k = 0; k < rank; ++k) {
        m[i * columns + j] += p[i * rank + k] * q[j * rank + k];
      }
    }
  }
  return m;
}

/// A rank, with all that it keeps.
struct Place {
  Floats residual;
  Floats left;
  Floats state;
  Floats next_state;
  Floats scratch;
  float factor = 1;
  spi::Encoding done;  ///< of the last round; refused of both

  Place(const spi::Codec& codec, const spi::CodecSegment& segment, float filler = -7)
      : residual(segment.element_count),
        left(segment.element_count, filler),
        state(codec.state_floats(segment)),
        next_state(codec.state_floats(segment), filler),
        scratch(codec.scratch_floats(segment), filler) {}

  spi::CodecMemory memory(bool feedback) {
    return {feedback ? residual.data() : nullptr,
            feedback ? left.data() : nullptr,
            factor,
            state.data(),
            next_state.data(),
            scratch.data()};
  }
  void next_step() {
    residual.swap(left);
    state.swap(next_state);
  }
};

inline Floats floats_of(const Bytes& bytes) {
  Floats floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), bytes.size());
  return floats;
}

inline Bytes copy_of(const Floats& floats) {
  const auto bytes = bytes_of(floats);
  return {bytes.begin(), bytes.end()};
}

inline double length(const Floats& values) {
  double squares = 0;
  for (const float value : values) {
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  return std::sqrt(squares);
}

inline double distance(const Floats& a, const Floats& b) {
  Floats difference(a.size());
  std::transform(a.begin(), a.end(), b.begin(), difference.begin(), std::minus<>());
  return length(difference);
}

/// M projected on what M q spans, in double.
inline Floats reference(
    std::size_t rows, std::size_t columns, std::size_t rank, const Floats& m, const Floats& q) {
  std::vector<Doubles> basis;
  for (std::size_t k = 0; k < rank; ++k) {
    Doubles column(rows);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j) {
        column[i] +=
            static_cast<double>(m[i * columns + j]) * static_cast<double>(q[k * columns + j]);
      }
    }
    const auto dot = [&](const Doubles& a, const Doubles& b) {
      double sum = 0;
      for (std::size_t i = 0; i < rows; ++i) {
        sum += a[i] * b[i];
      }
      return sum;
    };
    const double before = std::sqrt(dot(column, column));
    for (int pass = 0; pass < 2; ++pass) {
      for (const Doubles& earlier : basis) {
        const double along = dot(earlier, column);
        for (std::size_t i = 0; i < rows; ++i) {
          column[i] -= along * earlier[i];
        }
      }
    }
    const double after = std::sqrt(dot(column, column));
    if (after > 1e-6 * before) {
      for (double& element : column) {
        element /= after;
      }
      basis.push_back(column);
    }
  }
  Floats result(rows * columns);
  for (const Doubles& column : basis) {
    for (std::size_t j = 0; j < columns; ++j) {
      double along = 0;
      for (std::size_t i = 0; i < rows; ++i) {
        along += column[i] * static_cast<double>(m[i * columns + j]);
      }
      for (std::size_t i = 0; i < rows; ++i) {
        result[i * columns + j] += static_cast<float>(along * column[i]);
      }
    }
  }
  return result;
}

}  // namespace stretto::codec

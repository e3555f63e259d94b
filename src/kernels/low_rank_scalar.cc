// SPDX-License-Identifier: Apache-2.0

// One element at a time: what the vector kernels are held against.
#include "kernels/coding_block.hpp"
#include "kernels/low_rank_table.hpp"

#include <array>

namespace stretto::kernels {
namespace {

/// An element of x, and what it counts for.
struct Element {
  float x = 0;
  float value = 0;
  bool refused = false;
};

Element element(const LowRankSource& source, std::size_t i) noexcept {
  const float value = load_scalar(source.dtype, source.values, i);
  const float residual = source.residual == nullptr ? 0.0F : source.residual[i];
  const float x = coding_input(value, 1, residual, source.factor);
  if (beyond_coding_limit(x)) {
    return {coding_input_refused(residual, source.factor), 0, true};
  }
  return {x, value, false};
}

void store_scalar(DType dtype, std::byte* to, std::size_t i, float value) noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return ScalarFloat::store(to, i, value);
    case DType::kFloat16:
      return ScalarHalf::store(to, i, within_half(value));
    case DType::kBFloat16:
      return ScalarBrain::store(to, i, value);
  }
}

ProjectFacts project(const LowRankShape& shape,
                     const LowRankSource& source,
                     const float* q,
                     std::byte* p,
                     float* left) {
  ProjectFacts facts;
  for (std::size_t row = 0; row < shape.rows; ++row) {
    std::array<std::array<float, kSumLanes>, kMostRank> dots{};
    std::array<float, kSumLanes> squares{};
    for (std::size_t j = 0; j < shape.columns; ++j) {
      const std::size_t at = row * shape.columns + j;
      const std::size_t lane = j % kSumLanes;
      const Element here = element(source, at);
      facts.refused += here.refused ? 1 : 0;
      squares[lane] = squares[lane] + here.value * here.value;
      for (std::size_t k = 0; k < shape.rank; ++k) {
        dots[k][lane] = dots[k][lane] + here.x * q[k * shape.columns + j];
      }
      if (left != nullptr) {
        left[at] = here.x;
      }
    }
    for (std::size_t k = 0; k < shape.rank; ++k) {
      ScalarFloat::store(p, k * shape.rows + row, sum_of_lanes(dots[k].data()));
    }
    facts.value_squares += static_cast<double>(sum_of_lanes(squares.data()));
  }
  return facts;
}

void back_project(const LowRankShape& shape,
                  const LowRankSource& source,
                  const float* p,
                  std::byte* q) {
  for (std::size_t k = 0; k < shape.rank; ++k) {
    for (std::size_t j = 0; j < shape.columns; ++j) {
      float sum = 0;
      for (std::size_t row = 0; row < shape.rows; ++row) {
        sum = sum + element(source, row * shape.columns + j).x * p[k * shape.rows + row];
      }
      ScalarFloat::store(q, k * shape.columns + j, sum);
    }
  }
}

/// One element of p q^T.
float product(const LowRankShape& shape,
              const float* p,
              const std::byte* q,
              std::size_t row,
              std::size_t j) noexcept {
  float sum = ScalarFloat::load(q, j) * p[row];
  for (std::size_t k = 1; k < shape.rank; ++k) {
    sum = sum + ScalarFloat::load(q, k * shape.columns + j) * p[k * shape.rows + row];
  }
  return sum;
}

/// Of kRowBlock rows of a panel.
float leave_block(const LowRankShape& shape,
                  float* left,
                  const float* p,
                  const std::byte* q,
                  std::size_t first_row,
                  std::size_t first_column) noexcept {
  const std::size_t end_row = std::min(shape.rows, first_row + kRowBlock);
  const std::size_t end_column = std::min(shape.columns, first_column + panel_columns(shape.rows));
  std::array<float, kStrip> squares{};
  for (std::size_t strip = first_column; strip < end_column; strip += kStrip) {
    for (std::size_t row = first_row; row < end_row; ++row) {
      for (std::size_t j = strip; j < std::min(strip + kStrip, end_column); ++j) {
        float& here = left[row * shape.columns + j];
        here = here - product(shape, p, q, row, j);
        squares[j - strip] = squares[j - strip] + here * here;
      }
    }
  }
  for (std::size_t lane = 0; lane < kSumLanes; ++lane) {
    squares[lane] = squares[lane] + squares[lane + kSumLanes];
  }
  return sum_of_lanes(squares.data());
}

double back_project_and_leave(const LowRankShape& shape,
                              float* left,
                              const float* p,
                              std::byte* q) {
  LowRankSource source;
  source.values = reinterpret_cast<const std::byte*>(left);
  back_project(shape, source, p, q);
  double squares = 0;
  for (std::size_t j = 0; j < shape.columns; j += panel_columns(shape.rows)) {
    for (std::size_t row = 0; row < shape.rows; row += kRowBlock) {
      squares += static_cast<double>(leave_block(shape, left, p, q, row, j));
    }
  }
  return squares;
}

void multiply(
    const LowRankShape& shape, const float* p, const std::byte* q, DType dtype, std::byte* result) {
  for (std::size_t row = 0; row < shape.rows; ++row) {
    for (std::size_t j = 0; j < shape.columns; ++j) {
      store_scalar(dtype, result, row * shape.columns + j, product(shape, p, q, row, j));
    }
  }
}

}  // namespace

const LowRankTable& scalar_low_rank_table() noexcept {
  static constexpr LowRankTable kTable{project, back_project, back_project_and_leave, multiply};
  return kTable;
}

}  // namespace stretto::kernels

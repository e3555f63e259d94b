// SPDX-License-Identifier: Apache-2.0

// The vector kernels of low_rank.hpp.  Highway compiles this file once per instruction set; each
// function gives the bits of its namesake in low_rank_scalar.cc.
//
// Rows are taken in pairs or blocks and columns in chunks or strips, so that what is loaded of one
// matrix is used for as much of the others as there are registers and first-level cache for.
#include "kernels/low_rank_table.hpp"

#include <algorithm>
#include <array>

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/low_rank_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/low_rank_strip-inl.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels {
namespace HWY_NAMESPACE {
// Classes here have vectors as members, which those of a length that nobody knows cannot be.
#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE
const LowRankTable* low_rank_table() {
  return &scalar_low_rank_table();
}
#else

/// Columns that project works on at a time: those of q of rank 4 are half of the first cache.
constexpr std::size_t kChunk = 1024;

/// Partial sums of a row: of its products with each column of q, and of squares.
struct RowSums {
  HWY_ALIGN std::array<std::array<float, kSumLanes>, kMostRank> dots;
  HWY_ALIGN std::array<float, kSumLanes> squares;
};

/// Two rows of x, or one twice, with where their sums are.
struct RowPair {
  const float* x0;
  const float* x1;
  std::array<float, kSumLanes>* sums0;
  std::array<float, kSumLanes>* sums1;
};

/// Adds the products with `kColumns` columns of q, from k on, to the partial sums.
template <std::size_t kColumns>
HWY_INLINE void dot_rows(
    const RowPair& rows, const float* q, std::size_t stride, std::size_t count, std::size_t k) {
  const F32 d;
  const std::size_t whole = count / kSumLanes * kSumLanes;
  q += k * stride;
  for (std::size_t part = 0; part < kSumLanes; part += hn::Lanes(d)) {
    auto a = Columns<kColumns>::load(&rows.sums0[k][part], kSumLanes);
    auto b = Columns<kColumns>::load(&rows.sums1[k][part], kSumLanes);
    for (std::size_t j = part; j < whole; j += kSumLanes) {
      const auto by = Columns<kColumns>::load(q + j, stride);
      a.add_products(hn::LoadU(d, rows.x0 + j), by);
      b.add_products(hn::LoadU(d, rows.x1 + j), by);
    }
    a.store(&rows.sums0[k][part], kSumLanes);
    b.store(&rows.sums1[k][part], kSumLanes);
  }
  for (std::size_t j = whole; j < count; ++j) {
    for (std::size_t i = 0; i < kColumns; ++i) {
      float& sum0 = rows.sums0[k + i][j % kSumLanes];
      float& sum1 = rows.sums1[k + i][j % kSumLanes];
      sum0 = sum0 + rows.x0[j] * q[i * stride + j];
      sum1 = sum1 + rows.x1[j] * q[i * stride + j];
    }
  }
}

/// project for a block of rows.
template <typename Format, bool kHasResidual>
class ProjectBlock {
 public:
  ProjectBlock(const LowRankShape& shape, const LowRankSource& source, const float* q, float* left)
      : shape_(shape), source_(source), q_(q), left_(left) {}

  void run(std::size_t first_row, std::byte* p, ProjectFacts& facts) {
    const std::size_t rows = std::min(kRowBlock, shape_.rows - first_row);
    for (std::size_t r = 0; r < rows; ++r) {
      std::fill_n(sums_[r].dots.begin(), shape_.rank, std::array<float, kSumLanes>{});
      sums_[r].squares = {};
    }
    for (std::size_t column = 0; column < shape_.columns; column += kChunk) {
      for (std::size_t r = 0; r < rows; r += 2) {
        facts.refused += add_pair(first_row + r, column, r, r + 1 < rows);
      }
    }
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t k = 0; k < shape_.rank; ++k) {
        ScalarFloat::store(
            p, k * shape_.rows + first_row + r, reduce_lanes(sums_[r].dots[k].data()));
      }
      facts.value_squares += static_cast<double>(reduce_lanes(sums_[r].squares.data()));
    }
  }

 private:
  /// Adds a chunk of one row or two.  Returns how many values were refused.
  std::size_t add_pair(std::size_t row, std::size_t column, std::size_t r, bool two) {
    const std::size_t count = std::min(kChunk, shape_.columns - column);
    const std::size_t at = row * shape_.columns + column;
    float* const x0 = left_ == nullptr ? x_.data() : left_ + at;
    float* const x1 = left_ == nullptr ? x_.data() + kChunk : left_ + at + shape_.columns;
    std::size_t refused =
        form<Format, kHasResidual>(source_, at, count, x0, sums_[r].squares.data());
    if (two) {
      refused += form<Format, kHasResidual>(
          source_, at + shape_.columns, count, x1, sums_[r + 1].squares.data());
    }
    // A row without a neighbour is taken twice, the second time for nobody.
    RowSums& second = sums_[two ? r + 1 : kRowBlock];
    const RowPair pair{x0, two ? x1 : x0, sums_[r].dots.data(), second.dots.data()};
    by_columns(shape_.rank, [&](auto columns, std::size_t k) {
      dot_rows<columns()>(pair, q_ + column, shape_.columns, count, k);
    });
    return refused;
  }

  const LowRankShape shape_;
  const LowRankSource source_;
  const float* const q_;
  float* const left_;
  std::array<RowSums, kRowBlock + 1> sums_{};
  HWY_ALIGN std::array<float, 2 * kChunk> x_{};
};

template <typename Format, bool kHasResidual>
ProjectFacts project_as(const LowRankShape& shape,
                        const LowRankSource& source,
                        const float* q,
                        std::byte* p,
                        float* left) {
  ProjectFacts facts;
  ProjectBlock<Format, kHasResidual> block(shape, source, q, left);
  for (std::size_t row = 0; row < shape.rows; row += kRowBlock) {
    block.run(row, p, facts);
  }
  return facts;
}

/// Calls `call` with the element type and whether there is a residual, as constants.
template <typename Call>
HWY_INLINE auto with_source(const LowRankSource& source, const Call& call) {
  const auto with_format = [&](auto format) {
    return source.residual == nullptr ? call(format, std::false_type())
                                      : call(format, std::true_type());
  };
  switch (source.dtype) {
    case DType::kFloat16:
      return with_format(Half());
    case DType::kBFloat16:
      return with_format(Brain());
    case DType::kFloat32:
      break;
  }
  return with_format(Float());
}

ProjectFacts project(const LowRankShape& shape,
                     const LowRankSource& source,
                     const float* q,
                     std::byte* p,
                     float* left) {
  return with_source(source, [&](auto format, auto has_residual) {
    return project_as<decltype(format), has_residual()>(shape, source, q, p, left);
  });
}

/// Calls `whole(strip)` or `part(strip, how many columns it has)` for each strip of a block, whose
/// `strip` is given as if it were one.
template <typename Whole, typename Part>
HWY_INLINE void each_strip(Strip strip, std::size_t columns, const Whole& whole, const Part& part) {
  for (; columns >= kStrip; columns -= kStrip) {
    whole(strip);
    strip.x += strip.x == nullptr ? 0 : kStrip;
    strip.q += kStrip;
  }
  if (columns > 0) {
    part(strip, columns);
  }
}

/// q += x^T p for a block of rows.
void gather_block(const Strip& block, std::size_t columns, std::size_t rank) {
  each_strip(
      block,
      columns,
      [&](const Strip& strip) { gather(strip, rank); },
      [&](const Strip& strip, std::size_t count) {
        Rest rest(strip, count, rank);
        gather(rest.strip(), rank);
        rest.give_q();
      });
}

/// x -= p q^T for a block of rows.  Returns the sum of squares of what stays.
float leave_block(const Strip& block, std::size_t columns, std::size_t rank) {
  HWY_ALIGN std::array<float, kStrip> squares{};
  each_strip(
      block,
      columns,
      [&](const Strip& strip) { multiply(strip, rank, Leave(strip, squares.data())); },
      [&](const Strip& strip, std::size_t count) {
        Rest rest(strip, count, rank);
        const Strip filled = rest.strip();
        multiply(filled, rank, Leave(filled, squares.data()));
        rest.give_x();
      });
  for (std::size_t lane = 0; lane < kSumLanes; ++lane) {
    squares[lane] = squares[lane] + squares[lane + kSumLanes];
  }
  return reduce_lanes(squares.data());
}

template <typename Format, bool kHasResidual>
void back_project_as(const LowRankShape& shape,
                     const LowRankSource& source,
                     const float* p,
                     float* q) {
  constexpr std::size_t kColumns = 8 * kStrip;
  HWY_ALIGN std::array<float, kRowBlock * kColumns> x;
  HWY_ALIGN std::array<float, kSumLanes> squares{};
  for (std::size_t row = 0; row < shape.rows; row += kRowBlock) {
    const std::size_t rows = std::min(kRowBlock, shape.rows - row);
    for (std::size_t j = 0; j < shape.columns; j += kColumns) {
      const std::size_t columns = std::min(kColumns, shape.columns - j);
      for (std::size_t r = 0; r < rows; ++r) {
        form<Format, kHasResidual>(source,
                                   (row + r) * shape.columns + j,
                                   columns,
                                   x.data() + r * kColumns,
                                   squares.data());
      }
      gather_block({x.data(), kColumns, rows, p + row, shape.rows, q + j, shape.columns},
                   columns,
                   shape.rank);
    }
  }
}

void back_project(const LowRankShape& shape,
                  const LowRankSource& source,
                  const float* p,
                  std::byte* q) {
  std::fill_n(q, shape.rank * shape.columns * sizeof(float), std::byte{0});
  with_source(source, [&](auto format, auto has_residual) {
    back_project_as<decltype(format), has_residual()>(
        shape, source, p, reinterpret_cast<float*>(q));
  });
}

double back_project_and_leave(const LowRankShape& shape,
                              float* left,
                              const float* p,
                              std::byte* q) {
  std::fill_n(q, shape.rank * shape.columns * sizeof(float), std::byte{0});
  const auto block = [&](std::size_t row, std::size_t column) {
    return Strip{left + row * shape.columns + column,
                 shape.columns,
                 std::min(kRowBlock, shape.rows - row),
                 p + row,
                 shape.rows,
                 reinterpret_cast<float*>(q) + column,
                 shape.columns};
  };
  double squares = 0;
  const std::size_t panel = panel_columns(shape.rows);
  for (std::size_t j = 0; j < shape.columns; j += panel) {
    const std::size_t columns = std::min(panel, shape.columns - j);
    for (std::size_t row = 0; row < shape.rows; row += kRowBlock) {
      gather_block(block(row, j), columns, shape.rank);
    }
    for (std::size_t row = 0; row < shape.rows; row += kRowBlock) {
      squares += static_cast<double>(leave_block(block(row, j), columns, shape.rank));
    }
  }
  return squares;
}

template <typename Format>
void multiply_as(const LowRankShape& shape, const float* p, float* q, std::byte* result) {
  constexpr std::size_t kBytes = sizeof(typename Format::Element);
  for (std::size_t row = 0; row < shape.rows; row += kRowBlock) {
    const std::size_t rows = std::min(kRowBlock, shape.rows - row);
    std::byte* to = result + row * shape.columns * kBytes;
    each_strip(
        {nullptr, 0, rows, p + row, shape.rows, q, shape.columns},
        shape.columns,
        [&](const Strip& strip) {
          multiply(strip, shape.rank, Write<Format>(to, shape.columns));
          to += kStrip * kBytes;
        },
        [&](const Strip& strip, std::size_t count) {
          std::array<std::byte, kRowBlock * kStrip * kBytes> product;
          Rest rest(strip, count, shape.rank);
          multiply(rest.strip(), shape.rank, Write<Format>(product.data(), kStrip));
          for (std::size_t r = 0; r < rows; ++r) {
            std::copy_n(product.data() + r * kStrip * kBytes,
                        count * kBytes,
                        to + r * shape.columns * kBytes);
          }
        });
  }
}

void multiply(
    const LowRankShape& shape, const float* p, const std::byte* q, DType dtype, std::byte* result) {
  // Strips of p q^T are not written to.
  auto* const factor = reinterpret_cast<float*>(const_cast<std::byte*>(q));
  LowRankSource source;
  source.dtype = dtype;
  with_source(source, [&](auto format, auto /*has_residual*/) {
    multiply_as<decltype(format)>(shape, p, factor, result);
  });
}

const LowRankTable* low_rank_table() {
  static constexpr LowRankTable kTable{project, back_project, back_project_and_leave, multiply};
  return &kTable;
}

#endif  // HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace stretto::kernels
HWY_AFTER_NAMESPACE();

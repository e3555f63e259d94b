// SPDX-License-Identifier: Apache-2.0
#include "kernels/low_rank.hpp"

#include "kernels/kernels.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::kernels {
namespace {

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

constexpr std::byte kGuard{0x5c};

/// Ordinary values with heavy tails; some special ones, some to refuse.
Floats make_values(std::size_t n, std::uint32_t seed, bool with_refused) {
  std::mt19937 random(seed);
  std::student_t_distribution<float> heavy(3);
  Floats values(n);
  constexpr std::array kSpecial{0.0F, -0.0F, 1e6F, -1e6F, 1e-40F, 1e-30F};
  constexpr std::array kRefused{std::numeric_limits<float>::quiet_NaN(),
                                std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::max()};
  for (float& value : values) {
    value = 1e-3F * heavy(random);
    if (random() % 40 == 0) {
      value = kSpecial[random() % kSpecial.size()];
    }
    if (with_refused && random() % 200 == 0) {
      value = kRefused[random() % kRefused.size()];
    }
  }
  return values;
}

struct Case {
  LowRankShape shape;
  DType dtype = DType::kFloat32;
  bool has_residual = false;
  bool refused = false;
};

std::vector<Case> cases() {
  constexpr std::array<LowRankShape, 9> kShapes{{{1, 1, 1},
                                                 {3, 7, 2},
                                                 {17, 16, 3},
                                                 {16, 32, 8},
                                                 {64, 27, 4},
                                                 {33, 95, 5},
                                                 {3, 1100, 9},
                                                 {520, 130, 4},
                                                 {2, 2100, 1}}};
  std::vector<Case> all;
  for (const LowRankShape& shape : kShapes) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      all.push_back({shape, dtype, false, true});
      all.push_back({shape, dtype, true, false});
      all.push_back({shape, dtype, true, true});
    }
  }
  all.push_back({{4200, 270, 1}, DType::kFloat32, true, false});  // two panels
  return all;
}

/// Everything that the kernels write for one case.
struct Written {
  Bytes p;
  Bytes q;
  Bytes q_with_left;
  Bytes result;
  Floats x;
  Floats left;
  ProjectFacts facts;
  ProjectFacts facts_without_left;
  double left_squares = 0;
};

/// Bytes with something behind them that nobody may write to, `shift` off alignment.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::size_t shift)
      : shift_(shift), bytes_(shift + bytes + 64, kGuard) {}

  std::byte* data() { return bytes_.data() + shift_; }
  Bytes take() {
    EXPECT_TRUE(
        std::all_of(bytes_.end() - 64, bytes_.end(), [](std::byte b) { return b == kGuard; }));
    return {bytes_.begin() + static_cast<std::ptrdiff_t>(shift_), bytes_.end() - 64};
  }

 private:
  std::size_t shift_;
  Bytes bytes_;
};

/// What the kernels read for one case.
struct Input {
  explicit Input(const Case& c)
      : values(c.shape.rows * c.shape.columns * size_of(c.dtype) + 1),
        residual(make_values(c.shape.rows * c.shape.columns, 9, false)),
        start(make_values(c.shape.rank * c.shape.columns, 11, false)) {
    const Floats floats = make_values(residual.size(), 7, c.refused);
    const auto* bytes = reinterpret_cast<const std::byte*>(floats.data());
    cast(c.dtype, values.data(), DType::kFloat32, bytes, floats.size());
  }

  Bytes values;
  Floats residual;
  Floats start;
};

Written run(const Case& c, const Input& input, std::size_t shift) {
  const auto [rows, columns, rank] = c.shape;
  const std::size_t n = rows * columns;
  Bytes values(input.values.size());
  std::copy_n(input.values.begin(), n * size_of(c.dtype), values.data() + shift);
  const LowRankSource source{
      c.dtype, values.data() + shift, c.has_residual ? input.residual.data() : nullptr, 0.75F};
  Written out;
  Guarded p(rank * rows * 4, shift);
  Guarded p_again(rank * rows * 4, shift);
  Guarded q(rank * columns * 4, shift);
  Guarded q_with_left(rank * columns * 4, shift);
  Guarded result(n * size_of(c.dtype), shift);
  out.x.assign(n, -1);
  out.facts = project(c.shape, source, input.start.data(), p.data(), out.x.data());
  out.facts_without_left = project(c.shape, source, input.start.data(), p_again.data(), nullptr);
  out.p = p.take();
  EXPECT_EQ(p_again.take(), out.p);
  Floats factor(rank * rows);
  std::memcpy(factor.data(), out.p.data(), out.p.size());
  orthonormalize(c.shape, factor.data());
  back_project(c.shape, source, factor.data(), q.data());
  out.left = out.x;
  out.left_squares =
      back_project_and_leave(c.shape, out.left.data(), factor.data(), q_with_left.data());
  multiply(c.shape, factor.data(), q.data(), c.dtype, result.data());
  out.q = q.take();
  out.q_with_left = q_with_left.take();
  out.result = result.take();
  return out;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(LowRank, GivesTheSameBitsOnEveryInstructionSet) {
  const std::string before(target_name());
  for (const Case& c : cases()) {
    ASSERT_TRUE(select_target("scalar").is_ok());
    const Input input(c);
    const Written reference = run(c, input, 0);
    for (const std::string_view target : available_targets()) {
      ASSERT_TRUE(select_target(target).is_ok());
      const Written here = run(c, input, target == "scalar" ? 0 : 1);
      SCOPED_TRACE(testing::Message() << target << ", " << c.shape.rows << " x " << c.shape.columns
                                      << ", rank " << c.shape.rank << ", " << to_string(c.dtype));
      EXPECT_EQ(here.p, reference.p);
      EXPECT_EQ(here.q, reference.q);
      EXPECT_EQ(here.q_with_left, reference.q_with_left);
      EXPECT_EQ(here.result, reference.result);
      EXPECT_TRUE(same_bits(here.x, reference.x));
      EXPECT_TRUE(same_bits(here.left, reference.left));
      EXPECT_EQ(here.facts.refused, reference.facts.refused);
      EXPECT_EQ(here.facts.value_squares, reference.facts.value_squares);
      EXPECT_EQ(here.facts_without_left.refused, reference.facts.refused);
      EXPECT_EQ(here.left_squares, reference.left_squares);
    }
  }
  ASSERT_TRUE(select_target(before).is_ok());
}

double dot(const float* a, const float* b, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum;
}

TEST(LowRank, OrthonormalColumnsStaySoWhenTheyAreNearlyTheSame) {
  constexpr LowRankShape kShape{200, 1, 5};
  Floats p(kShape.rows * kShape.rank);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (std::size_t row = 0; row < kShape.rows; ++row) {
    const float common = normal(random);
    for (std::size_t k = 0; k < kShape.rank; ++k) {
      p[k * kShape.rows + row] = 1e18F * (common + 1e-4F * normal(random));
    }
  }
  orthonormalize(kShape, p.data());
  for (std::size_t a = 0; a < kShape.rank; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      const double product = dot(&p[a * kShape.rows], &p[b * kShape.rows], kShape.rows);
      EXPECT_NEAR(product, a == b ? 1 : 0, 1e-6) << a << ", " << b;
    }
  }
}

TEST(LowRank, AColumnThatSaysNothingNewBecomesZeros) {
  constexpr LowRankShape kShape{3, 1, 4};
  Floats p{1, 2, 3, 0, 0, 0, 2, 4, 6, 1, 0, 0};
  orthonormalize(kShape, p.data());
  for (std::size_t i = 3; i < 9; ++i) {
    EXPECT_EQ(p[i], 0) << i;
  }
  EXPECT_NEAR(dot(&p[9], &p[9], 3), 1, 1e-6);
  EXPECT_NEAR(dot(&p[9], &p[0], 3), 0, 1e-6);
}

TEST(LowRank, DirectionsKeepTheirLengthsWithinTwo) {
  constexpr LowRankShape kShape{1, 2, 4};
  const Floats q{3e38F, -1e38F, 3e-45F, 1e-45F, 0, 0, -1.5F, 0.75F};
  Floats next(q.size(), -1);
  keep_directions(kShape, reinterpret_cast<const std::byte*>(q.data()), next.data());
  const float scale = std::ldexp(1.0F, -127);
  const Floats expected{3e38F * scale, -1e38F * scale, 1, 0.5F, 0, 0, -1.5F, 0.75F};
  EXPECT_EQ(next, expected);
}

TEST(LowRank, DirectionsThatAreZerosAreDrawnNormal) {
  constexpr LowRankShape kShape{1, 50000, 2};
  Floats state(kShape.columns * kShape.rank);
  state[7] = 0.25F;
  Floats q(state.size(), -1);
  begin_directions(kShape, 5, state.data(), q.data());
  EXPECT_TRUE(std::equal(q.begin(), q.begin() + kShape.columns, state.begin()));
  const float* drawn = &q[kShape.columns];
  double sum = 0;
  for (std::size_t j = 0; j < kShape.columns; ++j) {
    sum += static_cast<double>(drawn[j]);
  }
  EXPECT_NEAR(sum / 50000, 0, 0.02);
  EXPECT_NEAR(dot(drawn, drawn, kShape.columns) / 50000, 1, 0.02);
  // Two neighbours have nothing to do with each other, nor have two seeds.
  EXPECT_NEAR(dot(drawn, drawn + 1, kShape.columns - 1) / 50000, 0, 0.02);
  Floats other(state.size());
  begin_directions(kShape, 6, state.data(), other.data());
  EXPECT_NEAR(dot(drawn, &other[kShape.columns], kShape.columns) / 50000, 0, 0.02);
}

}  // namespace
}  // namespace stretto::kernels

// SPDX-License-Identifier: Apache-2.0
#include "codec/factory.hpp"
#include "codec/powersgd_test_support.hpp"
#include "kernels/kernels.hpp"
#include "kernels/low_rank.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::codec {
namespace {

using CodecPointer = std::shared_ptr<const spi::Codec>;

CodecPointer make(const std::string& name) {
  auto codec = make_codec(name);
  EXPECT_TRUE(codec.has_value()) << name;
  return codec.value_or(nullptr);
}

enum class Form : std::uint8_t { kOwner, kEveryone };

/// One step of all ranks; those of weight 0 have no samples.  Returns the result, of which all have
/// the same bits.
Bytes step(const spi::Codec& codec,
           const spi::CodecSegment& segment,
           std::vector<Place>& places,
           const std::vector<Bytes>& values,
           const Floats& weights,
           Form form = Form::kOwner) {
  const bool feedback = codec.traits().feedback;
  float total = 0;
  for (const float weight : weights) {
    total += weight;
  }
  Bytes result;
  for (unsigned r = 0; r < codec.traits().rounds; ++r) {
    const spi::CodecRound round{r, 0, 0, static_cast<std::uint32_t>(places.size())};
    Floats sums(codec.sum_floats(segment, r));
    for (std::size_t rank = 0; rank < places.size(); ++rank) {
      if (weights[rank] == 0) {
        continue;
      }
      Bytes wire(codec.most_wire_bytes(segment, r));
      const auto done =
          codec.encode(segment, round, values[rank], places[rank].memory(feedback), wire);
      EXPECT_TRUE(done.has_value());
      EXPECT_EQ(done->wire_bytes, wire.size());
      places[rank].done.refused = done->refused + (r == 0 ? 0 : places[rank].done.refused);
      places[rank].done.value_squares = done->value_squares;
      places[rank].done.left_squares = done->left_squares;
      EXPECT_TRUE(codec.absorb(segment, round, wire, weights[rank], sums).is_ok());
    }
    Bytes wire(codec.most_wire_bytes(segment, r));
    if (form == Form::kOwner) {
      EXPECT_TRUE(codec.conclude(segment, round, sums, 1 / total, {}, wire).has_value());
    }
    for (Place& place : places) {
      Bytes here(segment.element_count * size_of(segment.dtype), std::byte{0x5c});
      const spi::CodecMemory memory = place.memory(feedback);
      Floats own = sums;
      EXPECT_TRUE((form == Form::kOwner
                       ? codec.decode(segment, round, wire, memory, here)
                       : codec.resolve(segment, round, own, 1 / total, memory, here))
                      .is_ok());
      EXPECT_TRUE(&place == &places.front() || here == result);
      result = here;
    }
  }
  for (Place& place : places) {
    place.next_step();
  }
  return result;
}

Floats step_alone(const spi::Codec& codec,
                  const spi::CodecSegment& segment,
                  std::vector<Place>& place,
                  const Floats& values) {
  return floats_of(step(codec, segment, place, {copy_of(values)}, {1}));
}

struct Shape {
  std::size_t rows;
  std::size_t columns;
};
constexpr std::array kShapes{Shape{1, 1}, Shape{3, 7}, Shape{64, 27}, Shape{40, 130}};

void expect_reference(Shape shape, std::size_t rank) {
  const auto codec = make("powersgd:" + std::to_string(rank));
  const spi::CodecSegment segment = matrix(shape.rows, shape.columns);
  const Floats m = random_matrix(segment.element_count, 3);
  Floats q(rank * shape.columns);
  kernels::begin_directions(
      {shape.rows, shape.columns, rank}, segment.seed, Floats(q.size()).data(), q.data());
  std::vector<Place> place{Place(*codec, segment)};
  const Floats result = step_alone(*codec, segment, place, m);
  const Floats expected = reference(shape.rows, shape.columns, rank, m, q);
  EXPECT_LE(distance(result, expected), 3e-6 * length(m))
      << shape.rows << " x " << shape.columns << ", rank " << rank;
  // What is left is what is missing, to the rounding of one subtraction, and counted as it is.
  for (std::size_t i = 0; i < m.size(); ++i) {
    ASSERT_EQ(place[0].residual[i], m[i] - result[i]) << i;
  }
  EXPECT_NEAR(place[0].done.value_squares, std::pow(length(m), 2), 1e-4 * std::pow(length(m), 2));
  EXPECT_NEAR(place[0].done.left_squares,
              std::pow(length(place[0].residual), 2),
              1e-4 * std::pow(length(m), 2));
}

TEST(PowerSgd, FirstStepIsTheReferences) {
  for (const Shape& shape : kShapes) {
    for (std::size_t rank = 1; rank <= 5; ++rank) {
      expect_reference(shape, rank);
    }
  }
}

TEST(PowerSgd, FirstStepOfAWideConvolutionIsTheReferences) {
  expect_reference({512, 4608}, 4);
}

TEST(PowerSgd, MatrixOfThatRankIsReproducedInTwoSteps) {
  for (const Shape& shape : {Shape{64, 27}, Shape{40, 130}, Shape{512, 600}}) {
    for (std::size_t rank = 1; rank <= 5; ++rank) {
      const auto codec = make("powersgd:" + std::to_string(rank) + ":feedback=off");
      const spi::CodecSegment segment = matrix(shape.rows, shape.columns);
      const Floats m = matrix_of_rank(shape.rows, shape.columns, rank);
      std::vector<Place> place{Place(*codec, segment)};
      step_alone(*codec, segment, place, m);
      EXPECT_LE(distance(step_alone(*codec, segment, place, m), m), 1e-5 * length(m))
          << shape.rows << " x " << shape.columns << ", rank " << rank;
    }
  }
}

TEST(PowerSgd, WarmStartFindsTheLargestDirections) {
  // One strong direction in noise: a single step from a random start finds a part of it alone.
  const auto codec = make("powersgd:1:feedback=off");
  const spi::CodecSegment segment = matrix(100, 120);
  Floats m = random_matrix(segment.element_count, 5);
  const Floats strong = matrix_of_rank(100, 120, 1);
  std::transform(m.begin(), m.end(), strong.begin(), m.begin(), [](float noise, float value) {
    return value + 0.7F * noise;
  });
  std::vector<Place> place{Place(*codec, segment)};
  const double first = distance(step_alone(*codec, segment, place, m), strong);
  double last = 0;
  for (int i = 0; i < 10; ++i) {
    last = distance(step_alone(*codec, segment, place, m), strong);
  }
  EXPECT_LT(last, 0.5 * first);
}

TEST(PowerSgd, WhatIsSentAndWhatIsLeftAddUpOverSteps) {
  const auto codec = make("powersgd:3");
  const spi::CodecSegment segment = matrix(31, 70);
  std::vector<Place> place{Place(*codec, segment)};
  Doubles given(segment.element_count);
  Doubles sent(segment.element_count);
  for (std::uint32_t s = 0; s < 20; ++s) {
    const Floats m = random_matrix(segment.element_count, s);
    const Floats result = step_alone(*codec, segment, place, m);
    for (std::size_t i = 0; i < m.size(); ++i) {
      given[i] += static_cast<double>(m[i]);
      sent[i] += static_cast<double>(result[i]);
    }
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    const double left = static_cast<double>(place[0].residual[i]);
    ASSERT_NEAR(sent[i] + left, given[i], 20 * 2 * 0x1p-24 * 20) << i;
  }
}

TEST(PowerSgd, ResidualsCarryTheirFactor) {
  const auto codec = make("powersgd:2");
  const spi::CodecSegment segment = matrix(20, 33);
  const Floats m = random_matrix(segment.element_count, 1);
  const Floats carried = random_matrix(segment.element_count, 2);
  Floats both(m.size());
  std::transform(
      m.begin(), m.end(), carried.begin(), both.begin(), [](float value, float residual) {
        return value + 0.5F * residual;
      });
  std::vector<Place> with{Place(*codec, segment)};
  with[0].residual = carried;
  with[0].factor = 0.5F;
  std::vector<Place> without{Place(*codec, segment)};
  EXPECT_EQ(step_alone(*codec, segment, with, m), step_alone(*codec, segment, without, both));
  EXPECT_EQ(with[0].residual, without[0].residual);
  EXPECT_NEAR(with[0].done.value_squares, std::pow(length(m), 2), 1e-2);
}

TEST(PowerSgd, WithoutFeedbackSendsTheSame) {
  const auto on = make("powersgd:4");
  const auto off = make("powersgd:4:feedback=off");
  const spi::CodecSegment segment = matrix(50, 75);
  const Floats m = random_matrix(segment.element_count, 1);
  std::vector<Place> with{Place(*on, segment)};
  std::vector<Place> without{Place(*off, segment)};
  EXPECT_EQ(step_alone(*on, segment, with, m), step_alone(*off, segment, without, m));
  EXPECT_EQ(with[0].state, without[0].state);
  EXPECT_EQ(without[0].residual, Floats(m.size(), -7)) << "written, though nobody gave it";
  EXPECT_EQ(without[0].done.left_squares, 0);
  EXPECT_GT(without[0].done.value_squares, 0);
}

TEST(PowerSgd, RanksKeepTheSameStateThoughOneHasNoSamples) {
  const auto codec = make("powersgd:2");
  const spi::CodecSegment segment = matrix(24, 40);
  const Floats weights{3, 0, 5};
  std::vector<Place> places;
  for (const float filler : {-7.0F, 1.0F, 1e9F}) {
    places.emplace_back(*codec, segment, filler);
  }
  for (std::uint32_t s = 0; s < 10; ++s) {
    std::vector<Bytes> values;
    Floats mean(segment.element_count);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      // A rank without samples does not encode: what it has left is its caller's to keep.
      const Floats m = random_matrix(segment.element_count, 10 * s + static_cast<unsigned>(rank));
      for (std::size_t i = 0; i < m.size() && rank != 1; ++i) {
        mean[i] += weights[rank] / 8 * (m[i] + places[rank].residual[i]);
      }
      values.push_back(copy_of(m));
    }
    const Floats result = floats_of(step(*codec, segment, places, values, weights));
    EXPECT_EQ(places[1].state, places[0].state);
    EXPECT_EQ(places[2].state, places[0].state);
    for (std::size_t i = 0; i < mean.size(); ++i) {
      const float left = 3.0F / 8 * places[0].residual[i] + 5.0F / 8 * places[2].residual[i];
      ASSERT_NEAR(result[i] + left, mean[i], 1e-5) << "step " << s << ", element " << i;
    }
  }
}

TEST(PowerSgd, OwnerAndEveryoneForItselfGiveTheSameBits) {
  const auto codec = make("powersgd:4");
  const spi::CodecSegment segment = matrix(30, 45);
  const std::vector<Bytes> values{copy_of(random_matrix(segment.element_count, 1)),
                                  copy_of(random_matrix(segment.element_count, 2))};
  std::vector<Place> a(2, Place(*codec, segment));
  std::vector<Place> b(2, Place(*codec, segment));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(step(*codec, segment, a, values, {1, 2}, Form::kOwner),
              step(*codec, segment, b, values, {1, 2}, Form::kEveryone));
    EXPECT_EQ(a[0].state, b[0].state);
  }
}

TEST(PowerSgd, NarrowTypesAreRoundedOnceAtTheEnd) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const auto codec = make("powersgd:4");
    spi::CodecSegment narrow = matrix(30, 45);
    const Floats m = random_matrix(narrow.element_count, 1);
    Bytes values(m.size() * 2);
    Bytes wide(m.size() * 4);
    kernels::cast(dtype, values.data(), DType::kFloat32, bytes_of(m).data(), m.size());
    kernels::cast(DType::kFloat32, wide.data(), dtype, values.data(), m.size());
    const spi::CodecSegment segment = narrow;
    narrow.dtype = dtype;
    std::vector<Place> a{Place(*codec, narrow)};
    std::vector<Place> b{Place(*codec, segment)};
    const Bytes result = step(*codec, narrow, a, {values}, {1});
    const Bytes exact = step(*codec, segment, b, {wide}, {1});
    Bytes rounded(result.size());
    kernels::cast(dtype, rounded.data(), DType::kFloat32, exact.data(), m.size());
    EXPECT_EQ(result, rounded) << to_string(dtype);
    EXPECT_EQ(a[0].residual, b[0].residual) << "the residual keeps what the rounding does not know";
  }
}

TEST(PowerSgd, ZerosStayZerosAndDoNoHarmToTheNextStep) {
  const auto codec = make("powersgd:4");
  const spi::CodecSegment segment = matrix(24, 40);
  const Floats zeros(segment.element_count);
  const Floats m = matrix_of_rank(24, 40, 4);
  std::vector<Place> place{Place(*codec, segment)};
  EXPECT_EQ(step_alone(*codec, segment, place, zeros), zeros);
  EXPECT_EQ(place[0].residual, zeros);
  EXPECT_LE(distance(step_alone(*codec, segment, place, m), m), 1e-4 * length(m));
}

TEST(PowerSgd, RankThatWasLostComesBack) {
  // A matrix of one row knows one direction; the next one has four.
  const auto codec = make("powersgd:4:feedback=off");
  const spi::CodecSegment segment = matrix(24, 40);
  Floats row(segment.element_count);
  std::fill_n(row.begin() + 80, 40, 1.0F);
  const Floats m = matrix_of_rank(24, 40, 4);
  std::vector<Place> place{Place(*codec, segment)};
  EXPECT_LE(distance(step_alone(*codec, segment, place, row), row), 1e-5 * length(row));
  EXPECT_LE(distance(step_alone(*codec, segment, place, m), m), 1e-4 * length(m));
}

TEST(PowerSgd, WhatIsRefusedIsCountedOnceAndTakenForNothing) {
  for (const std::string name : {"powersgd:2", "powersgd:2:feedback=off"}) {
    const auto codec = make(name);
    const spi::CodecSegment segment = matrix(20, 50);
    Floats good = random_matrix(segment.element_count, 4);
    Floats bad = good;
    constexpr std::array kRefused{std::numeric_limits<float>::quiet_NaN(),
                                  std::numeric_limits<float>::infinity(),
                                  -std::numeric_limits<float>::infinity(),
                                  1.2e18F};
    for (std::size_t i = 0; i < kRefused.size(); ++i) {
      good[i * 217] = 0;
      bad[i * 217] = kRefused[i];
    }
    std::vector<Place> a{Place(*codec, segment)};
    std::vector<Place> b{Place(*codec, segment)};
    EXPECT_EQ(step_alone(*codec, segment, a, bad), step_alone(*codec, segment, b, good));
    EXPECT_EQ(a[0].residual, b[0].residual);
    EXPECT_EQ(a[0].state, b[0].state);
    EXPECT_EQ(a[0].done.refused, kRefused.size());
    EXPECT_EQ(a[0].done.value_squares, b[0].done.value_squares);
  }
}

TEST(PowerSgd, ValuesOfAnySizeThatIsNotRefusedAreNumbersToTheEnd) {
  const auto codec = make("powersgd:4");
  for (const float size : {0x1p60F, 1e6F, 1e-20F, 1e-38F}) {
    const spi::CodecSegment segment = matrix(24, 40);
    Floats m = matrix_of_rank(24, 40, 4);
    const float largest = *std::max_element(
        m.begin(), m.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
    for (float& value : m) {
      value = value / std::abs(largest) * size;
    }
    std::vector<Place> place{Place(*codec, segment)};
    for (int i = 0; i < 3; ++i) {
      place[0].residual.assign(m.size(), 0);
      const double missed = distance(step_alone(*codec, segment, place, m), m);
      EXPECT_LE(missed, 1e-4 * length(m)) << size;
      EXPECT_EQ(place[0].done.refused, 0U);
    }
  }
}

TEST(PowerSgd, SpikesStayInTheResidualOrAreSent) {
  const auto codec = make("powersgd:4");
  const spi::CodecSegment segment = matrix(64, 576);
  Floats m = random_matrix(segment.element_count, 4);
  m[1234] = 1e6F;
  m[20000] = -1e6F;
  std::vector<Place> place{Place(*codec, segment)};
  const Floats result = step_alone(*codec, segment, place, m);
  for (std::size_t i = 0; i < m.size(); ++i) {
    ASSERT_EQ(place[0].residual[i], m[i] - result[i]);
  }
  EXPECT_NEAR(result[1234], 1e6F, 100);
}

}  // namespace
}  // namespace stretto::codec

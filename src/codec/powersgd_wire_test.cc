// SPDX-License-Identifier: Apache-2.0

// Wires, calls and names of PowerSGD that are wrong.
#include "codec/factory.hpp"
#include "codec/powersgd_test_support.hpp"

#include <limits>
#include <memory>
#include <string>

#include <gtest/gtest.h>

namespace stretto::codec {
namespace {

using CodecPointer = std::shared_ptr<const spi::Codec>;

CodecPointer make(const std::string& name) {
  auto codec = make_codec(name);
  EXPECT_TRUE(codec.has_value()) << name;
  return codec.value_or(nullptr);
}

// --- wires that no encoder has written

class CorruptWire : public ::testing::Test {
 protected:
  void expect_refused(unsigned round, const Bytes& wire) {
    Place place(*codec_, segment_);
    place.scratch.assign(place.scratch.size(), 0.1F);
    const Floats scratch = place.scratch;
    const Floats next_state = place.next_state;
    Bytes result(segment_.element_count * 4, std::byte{0x5c});
    const Bytes before = result;
    const spi::CodecRound at{round, 0, 0, 1};
    EXPECT_EQ(codec_->decode(segment_, at, wire, place.memory(true), result).code(),
              StatusCode::kCorruptWire);
    EXPECT_EQ(result, before);
    EXPECT_EQ(place.scratch, scratch);
    EXPECT_EQ(place.next_state, next_state);
    Floats sums(codec_->sum_floats(segment_, round), 2);
    const Floats sums_before = sums;
    EXPECT_EQ(codec_->absorb(segment_, at, wire, 1, sums).code(), StatusCode::kCorruptWire);
    EXPECT_EQ(sums, sums_before);
  }

  CodecPointer codec_ = make("powersgd:4");
  spi::CodecSegment segment_ = matrix(16, 20);
};

TEST_F(CorruptWire, OfAnotherLength) {
  for (const unsigned round : {0U, 1U}) {
    const std::size_t bytes = codec_->most_wire_bytes(segment_, round);
    for (const std::size_t wrong : {std::size_t{0}, bytes - 1, bytes - 4, bytes + 4}) {
      expect_refused(round, Bytes(wrong));
    }
  }
}

TEST_F(CorruptWire, WithWhatIsNoNumberOrTooLarge) {
  for (const unsigned round : {0U, 1U}) {
    for (const float wrong : {std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity(),
                              -0x1.000002p100F}) {
      Floats wire(codec_->most_wire_bytes(segment_, round) / 4, 1);
      wire.back() = wrong;
      expect_refused(round, copy_of(wire));
    }
  }
}

TEST_F(CorruptWire, UpToTheLargestIsTaken) {
  Floats sums(codec_->sum_floats(segment_, 0));
  const Floats wire(sums.size(), -0x1p100F);
  EXPECT_TRUE(codec_->absorb(segment_, {}, bytes_of(wire), 1, sums).is_ok());
}

// --- wrong calls

TEST(PowerSgd, ThirdRoundIsRefused) {
  const auto codec = make("powersgd:4");
  const spi::CodecSegment segment = matrix(16, 20);
  Floats sums(4 * 20);
  Bytes wire(sums.size() * 4);
  EXPECT_EQ(codec->conclude(segment, {2, 0, 0, 1}, sums, 1, {}, wire).error().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(codec->decode(segment, {2, 0, 0, 1}, wire, {}, {}).code(),
            StatusCode::kInvalidArgument);
}

TEST(PowerSgd, WhatIsNoMatrixIsRefused) {
  const auto codec = make("powersgd:4");
  const Floats values(20);
  Bytes wire(4000);
  for (const std::size_t row : {0U, 7U}) {
    const spi::CodecSegment segment{DType::kFloat32, 20, row, 1};
    EXPECT_EQ(codec->encode(segment, {}, bytes_of(values), {}, wire).error().code(),
              StatusCode::kInvalidArgument);
  }
}

TEST(PowerSgd, SpansOfAnotherLengthAreRefused) {
  const auto codec = make("powersgd:4");
  const spi::CodecSegment segment = matrix(16, 20);
  Place place(*codec, segment);
  const Floats values(320);
  Floats few(3);
  Bytes wire(codec->most_wire_bytes(segment, 0));
  const auto short_wire = std::span(wire).first(wire.size() - 1);
  const auto code = [](const auto& result) { return result.error().code(); };
  EXPECT_EQ(code(codec->encode(segment, {}, bytes_of(few), place.memory(true), wire)),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code(codec->encode(segment, {}, bytes_of(values), place.memory(true), short_wire)),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code(codec->conclude(segment, {}, few, 1, {}, wire)), StatusCode::kInvalidArgument);
  EXPECT_EQ(codec->absorb(segment, {}, wire, 1, few).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(codec->resolve(segment, {}, few, 1, place.memory(true), {}).code(),
            StatusCode::kInvalidArgument);
  const Bytes last(codec->most_wire_bytes(segment, 1));
  EXPECT_EQ(codec->decode(segment, {1, 0, 0, 1}, last, place.memory(true), wire).code(),
            StatusCode::kInvalidArgument);
}

// --- what it is

TEST(PowerSgd, SuitsMatricesThatItHalves) {
  const auto codec = make("powersgd:4");
  EXPECT_TRUE(codec->suits(matrix(64, 576)));
  EXPECT_TRUE(codec->suits(matrix(64, 27)));
  EXPECT_TRUE(codec->suits(matrix(17, 16)));
  EXPECT_FALSE(codec->suits(matrix(16, 16))) << "a half is not less than a half";
  EXPECT_FALSE(codec->suits(matrix(4, 1000000)));
  EXPECT_FALSE(codec->suits(matrix(1000000, 4)));
  EXPECT_FALSE(codec->suits({DType::kFloat32, 4096, 0, 1})) << "a vector";
  EXPECT_FALSE(codec->suits({DType::kFloat32, 4097, 64, 1})) << "no whole rows";
  EXPECT_FALSE(make("powersgd:32")->suits(matrix(64, 27)));
}

TEST(PowerSgd, NameSaysTheRank) {
  EXPECT_EQ(make("powersgd")->most_wire_bytes(matrix(16, 20), 0), 4U * 16 * 4);
  EXPECT_EQ(make("powersgd:7")->most_wire_bytes(matrix(16, 20), 1), 7U * 20 * 4);
  EXPECT_FALSE(make("powersgd:feedback=off")->traits().feedback);
  EXPECT_TRUE(make("powersgd:32")->traits().feedback);
  for (const std::string wrong : {"0", "33", "-1", "4.5", "four", "4:rank=2", "4:feedback=no"}) {
    const auto codec = make_codec("powersgd:" + wrong);
    ASSERT_FALSE(codec.has_value()) << wrong;
    EXPECT_EQ(codec.error().code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace stretto::codec

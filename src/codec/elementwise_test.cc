// SPDX-License-Identifier: Apache-2.0
#include "codec/factory.hpp"

#include "stretto/spi/conformance/codec_world.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::codec {
namespace {

using spi::conformance::CodecWorld;
using spi::conformance::to_memory;

std::shared_ptr<const spi::Codec> make(const std::string& name) {
  auto made = make_codec(name);
  EXPECT_TRUE(made.has_value()) << made.error().to_string();
  return made ? *made : nullptr;
}

std::string refusal(const std::string& name) {
  const auto made = make_codec(name);
  EXPECT_FALSE(made.has_value()) << name;
  return made ? "" : std::string(made.error().message());
}

spi::CodecSegment segment_of(std::size_t n) {
  spi::CodecSegment segment;
  segment.element_count = n;
  segment.seed = 3;
  return segment;
}

/// Heavy tails with spikes, denormals and zeros among them.
std::vector<float> heavy(std::size_t n) {
  std::mt19937 random(5);
  std::student_t_distribution<float> tails(3);
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    values[i] = i % 97 == 13 ? 1e6F : (i % 89 == 5 ? 1e-40F : tails(random));
  }
  return values;
}

/// What comes back of a rank's values, without an owner between.
std::vector<float> there_and_back(const spi::Codec& codec, const std::vector<float>& values) {
  const spi::CodecSegment segment = segment_of(values.size());
  std::vector<std::byte> wire(codec.most_wire_bytes(segment, 0));
  EXPECT_TRUE(codec.encode(segment, {}, std::as_bytes(std::span(values)), {}, wire).has_value());
  std::vector<float> result(values.size());
  EXPECT_TRUE(
      codec.decode(segment, {}, wire, {}, std::as_writable_bytes(std::span(result))).is_ok());
  return result;
}

/// The largest error of an element, by the largest magnitude in its block of 256.
double largest_error(const std::string& name) {
  const std::vector<float> values = heavy(5000);
  const std::vector<float> back = there_and_back(*make(name), values);
  double most = 0;
  for (std::size_t first = 0; first < values.size(); first += 256) {
    const std::size_t end = std::min(first + 256, values.size());
    double largest = 0;
    double error = 0;
    for (std::size_t i = first; i < end; ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(values[i])));
      error =
          std::max(error, std::abs(static_cast<double>(values[i]) - static_cast<double>(back[i])));
    }
    most = std::max(most, error / largest);
  }
  return most;
}

TEST(ElementwiseCodec, LevelsAreAsNearAsTheirStepSays) {
  EXPECT_LE(largest_error("int8"), 0.5 / 127 * (1 + 1e-4));
  EXPECT_LE(largest_error("int4"), 0.5 / 7 * (1 + 1e-4));
  EXPECT_LE(largest_error("int8:rounding=stochastic"), 1.0 / 127 * (1 + 1e-4));
  EXPECT_LE(largest_error("int4:rounding=stochastic"), 1.0 / 7 * (1 + 1e-4));
}

TEST(ElementwiseCodec, ABlockScaleKeepsFloat16InRange) {
  EXPECT_LE(largest_error("fp16"), 0x1p-11);
  EXPECT_LE(largest_error("bf16"), 0x1p-8);
  const std::vector<float> values{1e15F, -1e10F, 3e14F};
  const std::vector<float> back = there_and_back(*make("fp16"), values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(back[i], values[i], 0x1p-11F * std::abs(values[i]));
  }
}

TEST(ElementwiseCodec, SignGivesTheMeansOfWhatIsBelowAndAboveTheMiddleOfABlock) {
  std::vector<float> values(256);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = i % 2 == 0 ? -1.0F : 3.0F;
  }
  EXPECT_EQ(there_and_back(*make("sign"), values), values);
  // A few large ones among zeros, as gradients have them: the zeros stay zeros.
  std::fill(values.begin(), values.end(), 0.0F);
  values[7] = 64.0F;
  values[200] = 32.0F;
  values[201] = 40.0F;
  const std::vector<float> back = there_and_back(*make("sign"), values);
  EXPECT_EQ(back[7], 52.0F);
  EXPECT_EQ(back[201], 52.0F);
  EXPECT_EQ(back[200], back[0]);
  EXPECT_NEAR(back[0], 32.0F / 254, 0x1p-9F * 32 / 254);
}

TEST(ElementwiseCodec, SignGivesABlockOfEqualsAsTheyAre) {
  for (const std::size_t n : {1U, 255U, 256U, 257U}) {
    for (const float value : {-1.5F, 0.0F, 0x1p60F}) {
      const std::vector<float> values(n, value);
      EXPECT_EQ(there_and_back(*make("sign"), values), values) << n;
    }
  }
}

TEST(ElementwiseCodec, AnElementTakesTheBitsItsNameSays) {
  const spi::CodecSegment segment = segment_of(32768);
  const std::vector<std::pair<std::string, double>> least{{"fp16", 1.99},
                                                          {"bf16", 2.0},
                                                          {"int8", 3.9},
                                                          {"int4", 7.7},
                                                          {"sign", 28.4},
                                                          {"signmaj", 31.9}};
  for (const auto& [name, ratio] : least) {
    EXPECT_GE(4.0 * 32768 / static_cast<double>(make(name)->most_wire_bytes(segment, 0)), ratio)
        << name;
  }
}

TEST(ElementwiseCodec, FeedbackIsOnWhereTheErrorIsBiased) {
  EXPECT_FALSE(make("fp16")->traits().feedback);
  EXPECT_FALSE(make("bf16")->traits().feedback);
  EXPECT_TRUE(make("int8")->traits().feedback);
  EXPECT_TRUE(make("int4:rounding=nearest")->traits().feedback);
  EXPECT_TRUE(make("sign")->traits().feedback);
  EXPECT_FALSE(make("signmaj")->traits().feedback);
  EXPECT_FALSE(make("int8:rounding=stochastic")->traits().feedback);
  EXPECT_EQ(make("int8:rounding=stochastic")->traits().error, spi::CodecError::kUnbiased);
  EXPECT_TRUE(make("int8:rounding=stochastic:feedback=on")->traits().feedback);
  EXPECT_TRUE(make("fp16:feedback=on")->traits().feedback);
  EXPECT_FALSE(make("sign:feedback=off")->traits().feedback);
}

TEST(ElementwiseCodec, AnOptionThatItDoesNotKnowIsAnErrorThatNamesIt) {
  EXPECT_NE(refusal("fp16:rounding=nearest").find("rounding"), std::string::npos);
  EXPECT_NE(refusal("sign:rate=1").find("rate"), std::string::npos);
  EXPECT_NE(refusal("int8:rounding=up").find("nearest or stochastic"), std::string::npos);
  EXPECT_NE(refusal("int8:feedback=yes").find("on or off"), std::string::npos);
  EXPECT_NE(refusal("int8:3").find("no argument"), std::string::npos);
  EXPECT_NE(refusal("signmaj:feedback=on").find("error feedback"), std::string::npos);
  EXPECT_NE(refusal("signmaj:rate=0").find("above 0"), std::string::npos);
  EXPECT_NE(refusal("signmaj:rate=-1").find("from 0 to 1e+18"), std::string::npos);
  EXPECT_NE(refusal("signmaj:rounding=nearest").find("rounding"), std::string::npos);
  EXPECT_NE(refusal("int9").find("int8"), std::string::npos);
}

TEST(MajorityCodec, ARankHasOneVoteHoweverManySamples) {
  const auto codec = make("signmaj");
  for (const auto form : {CodecWorld::Form::kOwner, CodecWorld::Form::kAllGather}) {
    CodecWorld world(*codec, segment_of(4), 4, form);
    const auto gradient = [](std::vector<float> values) {
      return to_memory(DType::kFloat32, values);
    };
    world.step({gradient({1, 1, -1, 1}),
                gradient({-2, -2, 2, 2}),
                gradient({-3, -3, 3, -3}),
                gradient({9, 9, 9, 9})},
               {100, 1, 1, 0});
    // The mean over the votes of each one's mean magnitude: 1, 2 and 3.
    EXPECT_EQ(world.result(0), (std::vector<float>{-2, -2, 2, 2}));
  }
}

TEST(MajorityCodec, WithARateThatIsTheResult) {
  const auto codec = make("signmaj:rate=0.25");
  const std::vector<float> values{3, -7, 1e-3F, -1e5F};
  EXPECT_EQ(there_and_back(*codec, values), (std::vector<float>{0.25F, -0.25F, 0.25F, -0.25F}));
  EXPECT_EQ(codec->most_wire_bytes(segment_of(256), 0), 32U);
}

/// How many of a tie's elements come out positive, of 4096.
long positives(CodecWorld::Form form, std::uint64_t seed, std::vector<float>* result) {
  constexpr std::size_t kSize = 4096;
  const auto codec = make("signmaj");
  spi::CodecSegment segment = segment_of(kSize);
  segment.seed = seed;
  CodecWorld world(*codec, segment, 2, form);
  world.step({to_memory(DType::kFloat32, std::vector<float>(kSize, 1.0F)),
              to_memory(DType::kFloat32, std::vector<float>(kSize, -1.0F))},
             {1, 1});
  *result = world.result(1);
  return std::count(result->begin(), result->end(), 1.0F);
}

TEST(MajorityCodec, ATieIsACoinsAndTheSameOnEveryRank) {
  std::vector<float> owner;
  std::vector<float> gathered;
  std::vector<float> other;
  const long heads = positives(CodecWorld::Form::kOwner, 3, &owner);
  EXPECT_NEAR(static_cast<double>(heads), 2048, 5 * 32);
  positives(CodecWorld::Form::kAllGather, 3, &gathered);
  EXPECT_EQ(gathered, owner);
  positives(CodecWorld::Form::kOwner, 4, &other);
  EXPECT_NE(other, owner);
}

TEST(MajorityCodec, ZerosVoteByCoinsOfTheirOwnRank) {
  const auto codec = make("signmaj:rate=1");
  std::array<std::vector<std::byte>, 2> wires;
  const spi::CodecSegment segment = segment_of(4096);
  const std::vector<std::byte> zeros(4 * 4096);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    wires[rank].resize(codec->most_wire_bytes(segment, 0));
    ASSERT_TRUE(codec->encode(segment, {0, 1, rank, 2}, zeros, {}, wires[rank]).has_value());
  }
  EXPECT_NE(wires[0], wires[1]);
}

}  // namespace
}  // namespace stretto::codec

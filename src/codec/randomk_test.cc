// SPDX-License-Identifier: Apache-2.0
#include "codec/sparse.hpp"
#include "codec/testing/sender.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include <gtest/gtest.h>

namespace stretto::codec {
namespace {

TEST(Randomk, SentAndLeftAreWhatWasThereBitByBit) {
  for (const std::string share : {"100%", "1%", "0.1%", "0.01%"}) {
    const auto codec = make("randomk:" + share);
    for (const std::size_t n : {0U, 1U, 2U, 63U, 64U, 65U, 1000U, 300000U}) {
      SCOPED_TRACE(share + " of " + std::to_string(n));
      Sender sender(*codec, n);
      const Floats values = gaussian(n, 3);
      sender.residual = gaussian(n, 4);
      const Encoding encoding = sender.encode(values);
      const Floats sent = sender.decode();
      const std::size_t k = count_of_share(*parse_share(share), n);
      EXPECT_EQ(encoding.wire_bytes, 4 * k);
      EXPECT_EQ(std::count_if(sent.begin(), sent.end(), [](float v) { return v != 0; }), k);
      double squares = 0;
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_TRUE(sent[i] == 0 || sender.left[i] == 0);
        ASSERT_EQ(sent[i] + sender.left[i], values[i] + sender.residual[i]);
        squares += static_cast<double>(sender.left[i]) * static_cast<double>(sender.left[i]);
      }
      EXPECT_NEAR(encoding.left_squares, squares, 1e-6 * squares);
    }
  }
}

TEST(Randomk, ChoosesOneOfEachPartTheSameOnAllRanks) {
  const auto codec = make("randomk:1%");
  Sender one(*codec, 1000);
  Sender other(*codec, 1000);
  other.round.source = 3;
  std::vector<bool> ever(1000);
  for (unsigned step = 0; step < 2000; ++step) {
    one.round.step = step;
    other.round.step = step;
    one.encode(Floats(1000, 1));
    other.encode(Floats(1000, 1));
    const Floats sent = one.decode();
    ASSERT_EQ(sent, other.decode());
    for (std::size_t part = 0; part < 10; ++part) {
      const auto begin = sent.begin() + static_cast<std::ptrdiff_t>(100 * part);
      ASSERT_EQ(std::count(begin, begin + 100, 1.0F), 1);
    }
    for (std::size_t i = 0; i < sent.size(); ++i) {
      ever[i] = ever[i] || sent[i] != 0;
    }
  }
  // (1 - 1/100)^2000 that one is never chosen: 2e-9.
  EXPECT_TRUE(std::all_of(ever.begin(), ever.end(), [](bool chosen) { return chosen; }));
}

TEST(Randomk, ConcludesWithTheMeanAsItIs) {
  const auto codec = make("randomk:3%");
  constexpr std::size_t kElements = 1010;
  Sender owner(*codec, kElements);
  Floats sums(codec->sum_floats(owner.segment, 0));
  EXPECT_EQ(sums.size(), 31U);
  Floats total(kElements);
  for (unsigned rank = 0; rank < 3; ++rank) {
    Sender sender(*codec, kElements);
    sender.encode(gaussian(kElements, 20 + rank));
    const Floats sent = sender.decode();
    ASSERT_TRUE(codec->absorb(owner.segment, owner.round, sender.wire, 2, sums).is_ok());
    for (std::size_t i = 0; i < kElements; ++i) {
      total[i] += 2 * sent[i];
    }
  }
  owner.residual = gaussian(kElements, 30);
  owner.conclude(sums, 0.25F);
  const Floats mean = owner.decode();
  for (std::size_t i = 0; i < kElements; ++i) {
    ASSERT_EQ(mean[i] + owner.left[i], total[i] * 0.25F + owner.residual[i]);
  }
  EXPECT_EQ(std::count(owner.left.begin(), owner.left.end(), 0.0F), 31);
  Floats resolved(kElements);
  const auto into = std::as_writable_bytes(std::span(resolved));
  ASSERT_TRUE(codec->resolve(owner.segment, owner.round, sums, 0.25F, {}, into).is_ok());
  for (std::size_t i = 0; i < kElements; ++i) {
    ASSERT_EQ(resolved[i], total[i] * 0.25F);
  }
}

TEST(Randomk, IsUnbiasedWithoutFeedback) {
  const auto codec = make("randomk:30%:feedback=off");
  EXPECT_EQ(codec->traits().error, spi::CodecError::kUnbiased);
  EXPECT_FALSE(codec->traits().feedback);
  constexpr std::size_t kElements = 11;  // in four parts of two or three
  constexpr unsigned kSteps = 4000;
  const Floats values = gaussian(kElements, 5);
  std::vector<double> mean(kElements);
  Sender sender(*codec, kElements);
  for (unsigned step = 0; step < kSteps; ++step) {
    sender.round.step = step;
    sender.encode(values);
    const Floats sent = sender.decode();
    for (std::size_t i = 0; i < kElements; ++i) {
      mean[i] += static_cast<double>(sent[i]) / kSteps;
    }
  }
  for (std::size_t i = 0; i < kElements; ++i) {
    // Chosen once in w = 2 or 3: the standard error is |value| sqrt((w - 1) / steps).
    EXPECT_NEAR(mean[i], values[i], 5 * std::abs(values[i]) * std::sqrt(2.0 / kSteps));
  }
}

TEST(Randomk, LetsNothingThatIsRefusedIntoAResidual) {
  const auto codec = make("randomk:50%");
  Sender sender(*codec, 100);
  Floats values(100, std::numeric_limits<float>::quiet_NaN());
  values[0] = 1e30F;
  EXPECT_EQ(sender.encode(values).refused, 100U);
  EXPECT_EQ(sender.decode(), Floats(100));
  EXPECT_EQ(sender.left, Floats(100));
}

TEST(Randomk, RefusesWiresThatNoEncoderWrites) {
  const auto codec = make("randomk:1%");
  Sender sender(*codec, 5000);
  sender.encode(gaussian(5000, 8));
  const auto refuses = [&](const Bytes& wire) {
    Floats sums(50, 1);
    const Status absorbed = codec->absorb(sender.segment, sender.round, wire, 1, sums);
    Floats result(5000, 1);
    const auto into = std::as_writable_bytes(std::span(result));
    const Status decoded = codec->decode(sender.segment, sender.round, wire, {}, into);
    return absorbed.code() == StatusCode::kCorruptWire &&
           decoded.code() == StatusCode::kCorruptWire && sums == Floats(50, 1) &&
           result == Floats(5000, 1);
  };
  EXPECT_FALSE(refuses(sender.wire));
  EXPECT_TRUE(refuses(Bytes(199)));
  EXPECT_TRUE(refuses(Bytes(204)));
  for (const float value :
       {1e30F, std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    Bytes wire = sender.wire;
    std::memcpy(wire.data() + 100, &value, sizeof value);
    EXPECT_TRUE(refuses(wire)) << value;
  }
}

}  // namespace
}  // namespace stretto::codec

// SPDX-License-Identifier: Apache-2.0
#include "codec/factory.hpp"
#include "codec/sparse.hpp"
#include "codec/testing/sender.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <gtest/gtest.h>

namespace stretto::codec {
namespace {

TEST(Topk, SentAndLeftAreWhatWasThereBitByBit) {
  for (const std::string share : {"100%", "1%", "0.1%", "0.01%"}) {
    const auto codec = make("topk:" + share);
    for (const std::size_t n : {0U, 1U, 2U, 63U, 64U, 65U, 1000U, 300000U}) {
      SCOPED_TRACE(share + " of " + std::to_string(n));
      Sender sender(*codec, n);
      const Floats values = gaussian(n, 3);
      sender.residual = gaussian(n, 4);
      const Encoding encoding = sender.encode(values);
      const Floats sent = sender.decode();
      const std::size_t k = count_of_share(*parse_share(share), n);
      EXPECT_EQ(std::count_if(sent.begin(), sent.end(), [](float v) { return v != 0; }), k);
      EXPECT_LE(encoding.wire_bytes, codec->most_wire_bytes(sender.segment, 0));
      float least_sent = std::numeric_limits<float>::infinity();
      float most_left = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const float x = values[i] + sender.residual[i];
        ASSERT_TRUE(sent[i] == 0 || sender.left[i] == 0);
        ASSERT_EQ(sent[i] + sender.left[i], x);
        least_sent = sent[i] != 0 ? std::min(least_sent, std::abs(x)) : least_sent;
        most_left = std::max(most_left, std::abs(sender.left[i]));
      }
      EXPECT_GE(least_sent, most_left);
    }
  }
}

TEST(Topk, TakesFewBytesForEachValue) {
  constexpr std::size_t kElements = std::size_t{256} << 10U;
  for (const auto& [share, most] : {std::pair{"0.1%", 6.0}, std::pair{"0.01%", 7.0}}) {
    const auto codec = make(std::string("topk:") + share);
    Sender sender(*codec, kElements);
    const double bytes = static_cast<double>(sender.encode(gaussian(kElements, 5)).wire_bytes);
    EXPECT_LE(bytes / static_cast<double>(count_of_share(*parse_share(share), kElements)), most);
  }
}

TEST(Topk, BoundsItsWireWhateverTheIndicesAre) {
  // All at the end, all at the beginning, evenly: the unary parts are as long and as short as can
  // be.
  const auto codec = make("topk:1%");
  for (const std::size_t n : {100U, 1000U, 100000U}) {
    const std::size_t k = count_of_share(0.01, n);
    for (const std::size_t first : {std::size_t{0}, n - k}) {
      for (const std::size_t stride : {std::size_t{1}, n / k}) {
        Floats values(n);
        for (std::size_t j = 0; j < k; ++j) {
          values[(first + j * stride) % n] = 1;
        }
        Sender sender(*codec, n);
        const Encoding encoding = sender.encode(values);
        EXPECT_LE(encoding.wire_bytes, codec->most_wire_bytes(sender.segment, 0));
        EXPECT_EQ(sender.decode(), values);
      }
    }
  }
}

TEST(Topk, SendsNoZeros) {
  const auto codec = make("topk:10%");
  Sender sender(*codec, 1000);
  Floats values(1000);
  EXPECT_EQ(sender.encode(values).wire_bytes, 5U);
  EXPECT_EQ(sender.decode(), values);
  values[500] = -1e-42F;  // a denormal
  EXPECT_EQ(sender.encode(values).wire_bytes, most_bytes_of_one(1000));
  EXPECT_EQ(sender.decode(), values);
  EXPECT_EQ(sender.left, Floats(1000));
}

TEST(Topk, TakesTheFirstOfEqualValues) {
  const auto codec = make("topk:1%");
  Sender sender(*codec, 20000);
  sender.encode(Floats(20000, -0.5F));
  const Floats sent = sender.decode();
  for (std::size_t i = 0; i < sent.size(); ++i) {
    ASSERT_EQ(sent[i], i < 200 ? -0.5F : 0.0F);
    ASSERT_EQ(sender.left[i], i < 200 ? 0.0F : -0.5F);
  }
}

TEST(Topk, LetsNothingThatIsRefusedIntoAResidual) {
  const auto codec = make("topk:1%");
  Sender sender(*codec, 2000);
  Floats values = gaussian(2000, 6);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  values[300] = -std::numeric_limits<float>::infinity();
  values[1999] = 1e30F;
  values[5] = 1e6F;
  sender.residual[300] = 7;
  const Encoding encoding = sender.encode(values);
  EXPECT_EQ(encoding.refused, 3U);
  const Floats sent = sender.decode();
  EXPECT_EQ(sent[5], 1e6F);
  EXPECT_EQ(sent[300], 7);  // of which only the value was refused
  EXPECT_EQ(sent[3] + sender.left[3], 0);
  EXPECT_EQ(sent[1999] + sender.left[1999], 0);
}

TEST(Topk, SaysTheSameAgain) {
  const auto codec = make("topk:1%");
  const auto other = make("topk:0.01");
  Sender first(*codec, 30000);
  Sender second(*other, 30000);
  const Floats values = gaussian(30000, 7);
  const Encoding a = first.encode(values);
  const Encoding b = second.encode(values);
  EXPECT_EQ(first.wire, second.wire);
  EXPECT_EQ(a.left_squares, b.left_squares);
}

TEST(Topk, ConcludesWithTheLargestOfTheMean) {
  const auto codec = make("topk:1%");
  constexpr std::size_t kElements = 3000;
  Sender owner(*codec, kElements);
  Floats sums(kElements);
  for (unsigned rank = 0; rank < 3; ++rank) {
    Sender sender(*codec, kElements);
    sender.encode(gaussian(kElements, 20 + rank));
    const Floats sent = sender.decode();
    const Floats before = sums;
    ASSERT_TRUE(codec->absorb(owner.segment, owner.round, sender.wire, 2, sums).is_ok());
    for (std::size_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(sums[i], before[i] + 2 * sent[i]);
    }
  }
  owner.residual = gaussian(kElements, 30);
  Floats resolved(kElements);
  Floats copy = sums;
  const auto into = std::as_writable_bytes(std::span(resolved));
  ASSERT_TRUE(codec->resolve(owner.segment, owner.round, copy, 0.25F, {}, into).is_ok());
  owner.conclude(sums, 0.25F);
  const Floats mean = owner.decode();
  EXPECT_EQ(std::count_if(mean.begin(), mean.end(), [](float v) { return v != 0; }), 30);
  for (std::size_t i = 0; i < kElements; ++i) {
    ASSERT_EQ(resolved[i], sums[i] * 0.25F);
    ASSERT_EQ(mean[i] + owner.left[i], resolved[i] + owner.residual[i]);
  }
}

TEST(Topk, RefusesWiresThatNoEncoderWrites) {
  const auto codec = make("topk:1%");
  Sender sender(*codec, 5000);
  sender.encode(gaussian(5000, 8));
  const Bytes good = sender.wire;
  const auto refuses = [&](const Bytes& wire) {
    Floats sums(5000, 1);
    const Status absorbed = codec->absorb(sender.segment, sender.round, wire, 1, sums);
    Floats result(5000, 1);
    const auto into = std::as_writable_bytes(std::span(result));
    const Status decoded = codec->decode(sender.segment, sender.round, wire, {}, into);
    return absorbed.code() == StatusCode::kCorruptWire &&
           decoded.code() == StatusCode::kCorruptWire && sums == Floats(5000, 1) &&
           result == Floats(5000, 1);
  };
  EXPECT_FALSE(refuses(good));
  for (std::size_t size = 0; size < good.size(); ++size) {
    ASSERT_TRUE(refuses(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size))));
  }
  const auto changed = [&](std::size_t at, std::byte by) {
    Bytes wire = good;
    wire[at] ^= by;
    return wire;
  };
  for (std::size_t at = 0; at < 5; ++at) {
    EXPECT_TRUE(refuses(changed(at, std::byte{1}))) << at;
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(refuses(longer));
  const auto with_value = [&](float value) {
    Bytes wire = good;
    std::memcpy(wire.data() + wire.size() - sizeof value, &value, sizeof value);
    return wire;
  };
  EXPECT_FALSE(refuses(with_value(-3)));
  EXPECT_TRUE(refuses(with_value(0)));
  EXPECT_TRUE(refuses(with_value(1e30F)));
  EXPECT_TRUE(refuses(with_value(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(refuses(with_value(std::numeric_limits<float>::infinity())));
  const auto more = make("topk:2%");
  Sender generous(*more, 5000);  // more than a share of 1 % ever sends
  generous.encode(gaussian(5000, 8));
  EXPECT_TRUE(refuses(generous.wire));
}

TEST(Topk, MovesAndMasksAsAPlainLoopDoes) {
  constexpr std::size_t kElements = 2000;
  for (const bool nesterov : {false, true}) {
    const auto codec = make(std::string("topk:5%:momentum=0.9") + (nesterov ? ":nesterov=on" : ""));
    EXPECT_TRUE(codec->traits().owns_momentum);
    Sender sender(*codec, kElements);
    std::vector<double> u(kElements);
    std::vector<double> v(kElements);
    for (unsigned step = 0; step < 20; ++step) {
      const Floats g = gaussian(kElements, 100 + step);
      sender.round.step = step;
      sender.encode(g);
      const Floats sent = sender.decode();
      for (std::size_t i = 0; i < kElements; ++i) {
        u[i] = nesterov ? 0.9 * (u[i] + g[i]) : 0.9 * u[i] + g[i];
        v[i] += nesterov ? u[i] + g[i] : u[i];
        if (sent[i] != 0) {
          ASSERT_NEAR(sent[i], v[i], 1e-5);
          u[i] = 0;
          v[i] = 0;
        }
        ASSERT_NEAR(sender.left[i], v[i], 1e-5);
        ASSERT_NEAR(sender.next_state[i], u[i], 1e-5);
      }
      sender.next_step();
    }
  }
}

TEST(Topk, ClipsTheGradientBeforeAllElse) {
  const auto codec = make("topk:100%:clip=3");
  Sender sender(*codec, 400);
  sender.round.ranks = 9;
  sender.encode(Floats(400, 0.5F));  // of norm 10; may have 3 / sqrt(9)
  EXPECT_NEAR(sender.decode()[7], 0.05, 1e-6);
  sender.encode(Floats(400, 0.01F));  // of norm 0.2
  EXPECT_EQ(sender.decode()[7], 0.01F);
}

TEST(Topk, WarmsUp) {
  const auto codec = make("topk:1%:warmup=8");
  constexpr std::size_t kElements = 10000;
  const std::vector<std::ptrdiff_t> wanted{2500, 2500, 625, 625, 157, 157, 100, 100, 100, 100};
  for (std::size_t step = 0; step < wanted.size(); ++step) {
    Sender sender(*codec, kElements);
    sender.round.step = step;
    sender.encode(gaussian(kElements, 9));
    const Floats sent = sender.decode();
    EXPECT_EQ(std::count_if(sent.begin(), sent.end(), [](float v) { return v != 0; }), wanted[step])
        << step;
  }
}

#if defined(__SSE2__)
/// Everything that a codec does to values that are denormals.
std::vector<Floats> work_on_denormals(const spi::Codec& codec) {
  constexpr std::size_t kElements = 500;
  Sender sender(codec, kElements);
  Floats values(kElements);
  for (std::size_t i = 0; i < kElements; ++i) {
    const auto bits = static_cast<std::uint32_t>(1 + i * 7919 % 100000);
    std::memcpy(&values[i], &bits, sizeof bits);
  }
  sender.encode(values);
  Floats sums(codec.sum_floats(sender.segment, 0));
  EXPECT_TRUE(codec.absorb(sender.segment, sender.round, sender.wire, 3, sums).is_ok());
  const Floats sent = sender.decode();
  Floats resolved(kElements);
  Floats copy = sums;
  const auto into = std::as_writable_bytes(std::span(resolved));
  EXPECT_TRUE(codec.resolve(sender.segment, sender.round, copy, 0.5F, {}, into).is_ok());
  Sender owner(codec, kElements);
  owner.conclude(sums, 0.5F);
  return {sent, sender.left, sums, resolved, owner.decode(), owner.left};
}

TEST(Topk, AndRandomkKeepDenormalsWhateverTheThreadDoes) {
  for (const char* name :
       {"topk:10%", "topk:10%:momentum=0.9", "randomk:10%", "randomk:10%:feedback=off"}) {
    const auto codec = make(name);
    const std::vector<Floats> wanted = work_on_denormals(*codec);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040U);  // flush results and inputs to zero
    const std::vector<Floats> flushed = work_on_denormals(*codec);
    _mm_setcsr(before);
    EXPECT_EQ(flushed, wanted) << name;
  }
}
#endif

TEST(Topk, SaysWhatIsWrongWithAName) {
  const auto code = [](const char* name) { return make_codec(name).error().code(); };
  for (const char* name : {"topk:0%",
                           "topk:101%",
                           "topk:x",
                           "topk:1%:momentum=1",
                           "topk:1%:momentum=0.9:feedback=off",
                           "topk:1%:nesterov=on",
                           "topk:1%:clip=-1",
                           "topk:1%:warmup=1.5",
                           "topk:1%:rate=3",
                           "randomk:1%:momentum=0.9"}) {
    ASSERT_FALSE(make_codec(name).has_value()) << name;
    EXPECT_EQ(code(name), StatusCode::kInvalidArgument) << name;
  }
}

TEST(Topk, WantsSpansOfTheRightLength) {
  const auto codec = make("topk:1%:momentum=0.5");
  const spi::CodecSegment segment{.element_count = 100};
  Bytes values(400);
  Bytes wire(codec->most_wire_bytes(segment, 0));
  Floats sums(99);
  const auto code = [](const auto& result) {
    return result.has_value() ? StatusCode::kOk : result.error().code();
  };
  const auto wrong = StatusCode::kInvalidArgument;
  EXPECT_EQ(code(codec->encode(segment, {}, values, {}, wire)), wrong);  // no state
  EXPECT_EQ(code(codec->encode(segment, {.round = 1}, values, {}, wire)), wrong);
  EXPECT_EQ(code(codec->encode(segment, {}, std::span(values).first(396), {}, wire)), wrong);
  EXPECT_EQ(code(codec->conclude(segment, {}, sums, 1, {}, wire)), wrong);
  EXPECT_EQ(codec->absorb(segment, {}, Bytes(5), 1, sums).code(), wrong);
  EXPECT_EQ(codec->decode(segment, {}, Bytes(5), {}, std::span(values).first(396)).code(), wrong);
  sums.resize(100);
  EXPECT_EQ(code(codec->conclude(segment, {}, sums, 1, {}, std::span(wire).first(8))), wrong);
}

}  // namespace
}  // namespace stretto::codec

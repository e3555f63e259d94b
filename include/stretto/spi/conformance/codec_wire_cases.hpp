// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/conformance/codec_suite.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <thread>

#include <gtest/gtest.h>

// What spi::Codec says of wires: how long they are, what they depend on, and those that nobody
// wrote.

namespace stretto::spi {

TEST_P(CodecConformance, AWireHasMostWireBytesAtMostAndExactlyWhereItsLengthIsFixed) {
  for (const std::size_t n : kCodecSizes) {
    const CodecSegment here = segment(n);
    const std::size_t most = codec().most_wire_bytes(here, 0);
    const Bytes values = conformance::to_memory(here.dtype, normal(n, n));
    Place place(codec(), here);
    Bytes wire(most + 64, std::byte{0x5c});
    const auto done =
        codec().encode(here, round_of(0), values, place.memory(), std::span(wire).first(most));
    ASSERT_TRUE(done.has_value()) << done.error().to_string();
    EXPECT_LE(done->wire_bytes, most) << n << " elements";
    if (codec().traits().fixed_length) {
      EXPECT_EQ(done->wire_bytes, most) << n << " elements";
    }
    EXPECT_EQ(done->wire_bytes == 0, n == 0);
    for (std::size_t i = most; i < wire.size(); ++i) {
      ASSERT_EQ(wire[i], std::byte{0x5c}) << "written behind its end, " << n << " elements";
    }
  }
}

TEST_P(CodecConformance, WhatAWireSaysDependsOnNothingButTheArguments) {
  for (const std::size_t n : kCodecSizes) {
    const CodecSegment here = segment(n);
    const Floats values = normal(n, n);
    const Bytes wire = encode(here, values);
    std::array<Bytes, 2> wires;
    std::array<std::thread, 2> threads;
    for (std::size_t t = 0; t < threads.size(); ++t) {
      threads[t] = std::thread([&, t] { wires[t] = encode(here, values); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(wires[0], wire) << n << " elements";
    EXPECT_EQ(wires[1], wire) << n << " elements";
  }
}

TEST_P(CodecConformance, MemoryMayBeginAtAnyElement) {
  for (const DType dtype : kCodecTypes) {
    for (const std::size_t n : {std::size_t{255}, std::size_t{1000}}) {
      const CodecSegment here = segment(n, dtype);
      const Bytes values = conformance::to_memory(dtype, normal(n, n));
      Bytes shifted(values.size() + 64);
      const std::size_t first = size_of(dtype);
      std::copy(values.begin(), values.end(), shifted.begin() + static_cast<std::ptrdiff_t>(first));
      Place place(codec(), here);
      Place other(codec(), here);
      EXPECT_EQ(encode(here, std::span(shifted).subspan(first, values.size()), place),
                encode(here, values, other));
    }
  }
}

TEST_P(CodecConformance, AWireThatNobodyWroteIsAnErrorOrGivesNumbers) {
  for (const DType dtype : kCodecTypes) {
    for (const std::size_t n :
         {std::size_t{0}, std::size_t{3}, std::size_t{257}, std::size_t{1000}}) {
      const CodecSegment here = segment(n, dtype);
      const Bytes wire = encode(here, normal(n, 1));
      std::mt19937 random(static_cast<unsigned>(n));
      for (const std::size_t length :
           {wire.size() / 2, wire.size() - 1, wire.size() + 1, 2 * wire.size() + 7}) {
        if (length == wire.size() || length > 4 * wire.size() + 7) {
          continue;  // an empty wire has nothing to cut
        }
        Bytes wrong = wire;
        wrong.resize(length);
        check_wrong(here, wrong, true);
      }
      for (int flip = 0; flip < 300 && !wire.empty(); ++flip) {
        Bytes wrong = wire;
        wrong[random() % wrong.size()] ^= std::byte(1U << (random() % 8));
        check_wrong(here, wrong, false);
        std::generate(wrong.begin(), wrong.end(), [&] { return std::byte(random() & 0xffU); });
        check_wrong(here, wrong, false);
      }
      check_wrong(here, Bytes(wire.size(), std::byte{0xff}), false);
      check_wrong(here, Bytes(wire.size()), false);
    }
  }
}

TEST_P(CodecConformance, ArgumentsThatDoNotFitAreRefusedAndNothingIsWritten) {
  const CodecSegment here = segment(100);
  const Bytes values(400);
  const Bytes right = encode(here, normal(100, 1));
  const std::size_t most = codec().most_wire_bytes(here, 0);
  const std::size_t sum_count = codec().sum_floats(here, 0);
  const unsigned rounds = codec().traits().rounds;
  Place place(codec(), here);
  const CodecMemory memory = place.memory();
  Bytes wire(most, std::byte{0x5c});
  Bytes result(400, std::byte{0x5c});
  const auto is_refused = [](const auto& outcome) {
    const Status& status = detail::status_of(outcome);
    return !detail::succeeded(outcome) && status.code() == StatusCode::kInvalidArgument;
  };
  const auto short_wire = std::span(wire).first(most - 1);
  EXPECT_TRUE(is_refused(codec().encode(here, round_of(0), Bytes(396), memory, wire)));
  EXPECT_TRUE(is_refused(codec().encode(here, round_of(0), Bytes(404), memory, wire)));
  EXPECT_TRUE(is_refused(codec().encode(here, round_of(0), values, memory, short_wire)));
  EXPECT_TRUE(is_refused(codec().encode(here, round_of(rounds), values, memory, wire)));
  for (const std::size_t wrong : {sum_count - 1, sum_count + 1}) {
    Floats sums(wrong, 0.5F);
    EXPECT_TRUE(is_refused(codec().absorb(here, round_of(0), right, 1, sums)));
    EXPECT_TRUE(is_refused(codec().conclude(here, round_of(0), sums, 1, memory, wire)));
    EXPECT_TRUE(is_refused(codec().resolve(here, round_of(0), sums, 1, memory, result)));
    EXPECT_EQ(sums, Floats(wrong, 0.5F));
  }
  Floats sums(sum_count, 0.5F);
  EXPECT_TRUE(is_refused(codec().absorb(here, round_of(rounds), right, 1, sums)));
  EXPECT_TRUE(is_refused(codec().conclude(here, round_of(rounds), sums, 1, memory, wire)));
  EXPECT_TRUE(is_refused(codec().conclude(here, round_of(0), sums, 1, memory, short_wire)));
  EXPECT_TRUE(is_refused(codec().decode(here, round_of(rounds), right, memory, result)));
  EXPECT_TRUE(is_refused(codec().resolve(here, round_of(rounds), sums, 1, memory, result)));
  if (one_round()) {  // before the last round nobody looks at a result
    Bytes other(396, std::byte{0x5c});
    EXPECT_TRUE(is_refused(codec().decode(here, round_of(0), right, memory, other)));
    EXPECT_TRUE(is_refused(codec().resolve(here, round_of(0), sums, 1, memory, other)));
    EXPECT_EQ(other, Bytes(396, std::byte{0x5c}));
  }
  EXPECT_EQ(sums, Floats(sum_count, 0.5F));
  EXPECT_EQ(wire, Bytes(most, std::byte{0x5c}));
  EXPECT_EQ(result, Bytes(400, std::byte{0x5c}));
}

}  // namespace stretto::spi

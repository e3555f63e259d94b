// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/factory.hpp"
#include "codec/name.hpp"
#include "codec/sparse_wire.hpp"

#include "stretto/spi/codec.hpp"

#include <cstddef>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

// One rank that sends, or an owner, with its memory, for the tests of this folder.

namespace stretto::codec {

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;
using spi::Encoding;

inline std::shared_ptr<const spi::Codec> make(const std::string& name) {
  auto codec = make_codec(name);
  EXPECT_TRUE(codec.has_value()) << codec.error().to_string();
  return *codec;
}

inline Floats gaussian(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(n);
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

/// What a wire of one element of n, in the middle, takes.
inline std::size_t most_bytes_of_one(std::size_t n) {
  return most_sparse_bytes(n, 1);
}

struct Sender {
  Sender(const spi::Codec& which, std::size_t n) : codec(which) {
    segment.element_count = n;
    segment.seed = 77;
    residual.resize(n);
    left.assign(n, -1);
    state.resize(codec.state_floats(segment));
    next_state.assign(state.size(), -1);
  }

  spi::CodecMemory memory() {
    spi::CodecMemory all;
    all.residual = codec.traits().feedback ? residual.data() : nullptr;
    all.left = codec.traits().feedback ? left.data() : nullptr;
    all.state = state.data();
    all.next_state = next_state.data();
    return all;
  }
  Encoding encode(const Floats& values) {
    wire.assign(codec.most_wire_bytes(segment, 0), std::byte{0});
    return keep(codec.encode(segment, round, std::as_bytes(std::span(values)), memory(), wire));
  }
  Encoding conclude(Floats sums, float scale) {
    wire.assign(codec.most_wire_bytes(segment, 0), std::byte{0});
    return keep(codec.conclude(segment, round, sums, scale, memory(), wire));
  }
  Floats decode() {
    Floats result(segment.element_count, -1);
    const auto into = std::as_writable_bytes(std::span(result));
    const Status status = codec.decode(segment, round, wire, memory(), into);
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    return result;
  }
  void next_step() {
    std::swap(residual, left);
    std::swap(state, next_state);
  }

  const spi::Codec& codec;
  spi::CodecSegment segment;
  spi::CodecRound round;
  Floats residual;
  Floats left;
  Floats state;
  Floats next_state;
  Bytes wire;

 private:
  Encoding keep(const Result<Encoding>& encoding) {
    EXPECT_TRUE(encoding.has_value()) << encoding.error().to_string();
    wire.resize(encoding->wire_bytes);
    return *encoding;
  }
};

}  // namespace stretto::codec

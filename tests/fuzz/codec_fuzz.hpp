// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/factory.hpp"

#include "stretto/spi/codec.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

// What the targets for the wires of codecs have in common.  The first byte of an input says which
// codec, the second how many elements; the rest is the wire that came.

namespace stretto::codec {

using Codecs = std::vector<std::shared_ptr<const spi::Codec>>;

/// Those of codec_names whose kind is one of these, then others.
inline Codecs fuzzed_codecs(std::initializer_list<std::string_view> kinds,
                            std::initializer_list<std::string_view> others = {}) {
  Codecs codecs;
  for (const std::string_view name : codec_names()) {
    const std::string_view kind = name.substr(0, name.find(':'));
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) {
      codecs.push_back(make_codec(name).value());
    }
  }
  for (const std::string_view name : others) {
    codecs.push_back(make_codec(name).value());
  }
  return codecs;
}

/// Codecs that send few elements.
inline Codecs sparse_fuzz_codecs() {
  return fuzzed_codecs({"topk", "randomk"}, {"topk:25%"});
}

/// Codecs that say something of every element.
inline Codecs elementwise_fuzz_codecs() {
  return fuzzed_codecs({"fp16", "bf16", "int8", "int4", "sign", "signmaj"});
}

/// Codecs that send a matrix as factors, in two rounds.
inline Codecs factors_fuzz_codecs() {
  return fuzzed_codecs({"powersgd"}, {"powersgd:1"});
}

/// The matrix that a byte of the input says.
inline spi::CodecSegment fuzzed_matrix(std::uint8_t byte) {
  spi::CodecSegment segment;
  segment.row_elements = 40;
  segment.element_count = segment.row_elements * (12 + byte % 8U);
  segment.seed = byte;
  return segment;
}

/// How many elements a byte of the input says.
inline std::size_t fuzzed_elements(std::uint8_t byte) {
  return std::size_t{3} * byte;
}

inline void require_codec(bool holds) {
  if (!holds) {
    std::abort();
  }
}

/// What was let in is finite; what was not has changed nothing.
inline void require_effect(const Status& status, const std::vector<float>& floats, float before) {
  if (status.is_ok()) {
    require_codec(
        std::all_of(floats.begin(), floats.end(), [](float v) { return std::isfinite(v); }));
    return;
  }
  require_codec(status.code() == StatusCode::kCorruptWire);
  require_codec(std::count(floats.begin(), floats.end(), before) ==
                static_cast<std::ptrdiff_t>(floats.size()));
}

/// Absorbs and decodes what came.
inline int feed_codecs(const Codecs& codecs, const std::uint8_t* data, std::size_t size) {
  if (size < 2) {
    return 0;
  }
  const spi::Codec& codec = *codecs[data[0] % codecs.size()];
  const auto wire = std::as_bytes(std::span(data + 2, size - 2));
  spi::CodecSegment segment;
  segment.element_count = fuzzed_elements(data[1]);
  segment.seed = data[1];
  constexpr float kBefore = 0.5F;
  std::vector<float> sums(codec.sum_floats(segment, 0), kBefore);
  const Status absorbed = codec.absorb(segment, {}, wire, 2, sums);
  require_effect(absorbed, sums, kBefore);
  std::vector<float> result(segment.element_count, kBefore);
  const auto into = std::as_writable_bytes(std::span(result));
  const Status decoded = codec.decode(segment, {}, wire, {}, into);
  require_effect(decoded, result, kBefore);
  return 0;
}

/// The same of factors; the first byte's highest bit says which round.
inline int feed_factors(const Codecs& codecs, const std::uint8_t* data, std::size_t size) {
  if (size < 2) {
    return 0;
  }
  const spi::Codec& codec = *codecs[(data[0] & 0x7fU) % codecs.size()];
  const auto wire = std::as_bytes(std::span(data + 2, size - 2));
  const spi::CodecSegment segment = fuzzed_matrix(data[1]);
  spi::CodecRound round;
  round.round = data[0] >> 7U;
  constexpr float kBefore = 0.5F;
  std::vector<float> sums(codec.sum_floats(segment, round.round), kBefore);
  require_effect(codec.absorb(segment, round, wire, 2, sums), sums, kBefore);
  const std::vector<float> state(codec.state_floats(segment), 1.0F);
  std::vector<float> next_state(state.size());
  std::vector<float> scratch(codec.scratch_floats(segment), 0.25F);
  spi::CodecMemory memory;
  memory.state = state.data();
  memory.next_state = next_state.data();
  memory.scratch = scratch.data();
  std::vector<float> result(segment.element_count, kBefore);
  const auto into = std::as_writable_bytes(std::span(result));
  require_effect(codec.decode(segment, round, wire, memory, into), result, kBefore);
  return 0;
}

}  // namespace stretto::codec

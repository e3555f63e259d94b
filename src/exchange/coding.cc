// SPDX-License-Identifier: Apache-2.0
#include "exchange/coding.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace stretto::exchange {
namespace {

using spi::CodedMemory;
using spi::CodedSegment;

constexpr std::size_t kLengthBytes = sizeof(std::uint32_t);

std::size_t table_bytes(const spi::ChunkDescription& chunk) noexcept {
  return chunk.codec->traits().fixed_length ? 0 : chunk.segments.size() * kLengthBytes;
}

void put_length(std::span<std::byte> wire, std::size_t segment, std::size_t length) noexcept {
  const std::uint32_t value = static_cast<std::uint32_t>(length);
  std::memcpy(wire.data() + segment * kLengthBytes, &value, sizeof value);
}

std::size_t get_length(std::span<const std::byte> wire, std::size_t segment) noexcept {
  std::uint32_t value = 0;
  std::memcpy(&value, wire.data() + segment * kLengthBytes, sizeof value);
  return value;
}

/// The next segment's wire, and `at` behind it; empty and false if the wire ends before.
bool next_wire(const spi::ChunkDescription& chunk,
               std::size_t segment,
               unsigned round,
               std::span<const std::byte> wire,
               std::size_t& at,
               std::span<const std::byte>& part) noexcept {
  const std::size_t table = table_bytes(chunk);
  const std::size_t most = chunk.codec->most_wire_bytes(chunk.segments[segment].segment, round);
  if (segment == 0) {
    at = table;
  }
  if (wire.size() < table) {
    return false;
  }
  const std::size_t length = table == 0 ? most : get_length(wire, segment);
  if (length > most || length > wire.size() - std::min(at, wire.size())) {
    return false;
  }
  part = wire.subspan(at, length);
  at += length;
  return segment + 1 < chunk.segments.size() || at == wire.size();
}

Status cut_short() {
  return {StatusCode::kCorruptWire, "the wire has another length than its segments"};
}

template <typename Floats>
std::size_t sum_padded(const spi::ChunkDescription& chunk, const Floats& floats) noexcept {
  std::size_t sum = 0;
  for (const CodedSegment& entry : chunk.segments) {
    sum += CodedMemory::padded(floats(entry.segment));
  }
  return sum;
}

}  // namespace

std::size_t most_wire_bytes(const spi::ChunkDescription& chunk, unsigned round) noexcept {
  std::size_t bytes = table_bytes(chunk);
  for (const CodedSegment& entry : chunk.segments) {
    bytes += chunk.codec->most_wire_bytes(entry.segment, round);
  }
  return bytes;
}

std::size_t most_wire_bytes(const spi::ChunkDescription& chunk) noexcept {
  std::size_t most = 0;
  for (unsigned round = 0; round < chunk.codec->traits().rounds; ++round) {
    most = std::max(most, most_wire_bytes(chunk, round));
  }
  return most;
}

std::size_t most_sum_floats(const spi::ChunkDescription& chunk) noexcept {
  std::size_t most = 0;
  for (unsigned round = 0; round < chunk.codec->traits().rounds; ++round) {
    for (const CodedSegment& entry : chunk.segments) {
      most = std::max(most, chunk.codec->sum_floats(entry.segment, round));
    }
  }
  return most;
}

std::size_t state_floats(const spi::ChunkDescription& chunk) noexcept {
  return sum_padded(
      chunk, [&](const spi::CodecSegment& segment) { return chunk.codec->state_floats(segment); });
}

std::size_t scratch_floats(const spi::ChunkDescription& chunk) noexcept {
  return sum_padded(chunk, [&](const spi::CodecSegment& segment) {
    return chunk.codec->scratch_floats(segment);
  });
}

void keep_memory(const spi::ChunkDescription& chunk, const CodedMemory& memory) noexcept {
  if (memory.residual != nullptr) {
    std::copy_n(memory.residual, chunk.element_count, memory.left);
  }
  if (memory.state != nullptr) {
    std::copy_n(memory.state, state_floats(chunk), memory.next_state);
  }
}

void CodedWork::run() noexcept {
  wire_bytes = 0;
  facts = {};
  at_ = 0;
  state_at_ = 0;
  scratch_at_ = 0;
  status = run_segments();
}

Status CodedWork::run_segments() {
  if (kind == Kind::kClear) {
    std::memset(result, 0, chunk->element_count * size_of(chunk->dtype));
    return {};
  }
  const bool writes = kind == Kind::kEncode || kind == Kind::kReduce;
  at_ = writes ? table_bytes(*chunk) : 0;
  for (std::size_t segment = 0; segment < chunk->segments.size(); ++segment) {
    switch (kind) {
      case Kind::kEncode:
        STRETTO_TRY(encode(segment));
        break;
      case Kind::kReduce:
      case Kind::kResolve:
        STRETTO_TRY(reduce(segment));
        break;
      case Kind::kDecode:
        STRETTO_TRY(decode(segment));
        break;
      case Kind::kClear:
        break;
    }
    const spi::CodecSegment& entry = chunk->segments[segment].segment;
    state_at_ += CodedMemory::padded(chunk->codec->state_floats(entry));
    scratch_at_ += CodedMemory::padded(chunk->codec->scratch_floats(entry));
  }
  wire_bytes = writes ? at_ : 0;
  return {};
}

spi::CodecMemory CodedWork::memory_of(std::size_t segment) const noexcept {
  const std::size_t first = chunk->segments[segment].first_element;
  spi::CodecMemory of;
  if (memory.residual != nullptr) {
    of.residual = memory.residual + first;
    of.left = memory.left + first;
    of.factor = memory.factor;
  }
  if (memory.state != nullptr) {
    of.state = memory.state + state_at_;
    of.next_state = memory.next_state + state_at_;
  }
  if (memory.scratch != nullptr) {
    of.scratch = memory.scratch + scratch_at_;
  }
  return of;
}

spi::CodecRound CodedWork::round_of(Rank source) const noexcept {
  return {round, memory.step, static_cast<std::uint32_t>(index_of(source)), ranks};
}

std::span<std::byte> CodedWork::result_of(std::size_t segment) const noexcept {
  const CodedSegment& entry = chunk->segments[segment];
  const std::size_t width = size_of(chunk->dtype);
  return {result + entry.first_element * width, entry.segment.element_count * width};
}

std::span<std::byte> CodedWork::room_of(std::size_t segment) noexcept {
  return wire.subspan(at_, chunk->codec->most_wire_bytes(chunk->segments[segment].segment, round));
}

void CodedWork::take(const spi::Encoding& encoding, std::size_t segment) noexcept {
  if (!chunk->codec->traits().fixed_length) {
    put_length(wire, segment, encoding.wire_bytes);
  }
  at_ += encoding.wire_bytes;
  facts.refused += encoding.refused;
  if (encoding.refused > 0) {
    facts.first_refused_segment = std::min(facts.first_refused_segment, segment);
  }
  if (kind == Kind::kEncode) {
    facts.value_squares += encoding.value_squares;
    facts.left_squares += encoding.left_squares;
  }
}

Status CodedWork::encode(std::size_t segment) {
  const CodedSegment& entry = chunk->segments[segment];
  const std::size_t width = size_of(chunk->dtype);
  const auto done = chunk->codec->encode(
      entry.segment,
      round_of(rank),
      {contribution + entry.first_element * width, entry.segment.element_count * width},
      memory_of(segment),
      room_of(segment));
  if (!done) {
    return named(done.error(), segment, nullptr);
  }
  take(*done, segment);
  return {};
}

/// total += the parts' wires, in rank order.
Status CodedWork::absorb(std::size_t segment, std::span<float> total) {
  std::fill(total.begin(), total.end(), 0.0F);
  for (CodedPart& part : parts) {
    if (part.samples == 0) {
      continue;
    }
    std::span<const std::byte> of_segment;
    Status added = next_wire(*chunk, segment, round, part.wire, part.at, of_segment)
                       ? chunk->codec->absorb(chunk->segments[segment].segment,
                                              round_of(part.rank),
                                              of_segment,
                                              static_cast<float>(part.samples),
                                              total)
                       : cut_short();
    if (!added.is_ok()) {
      return named(added, segment, &part);
    }
  }
  return {};
}

Status CodedWork::reduce(std::size_t segment) {
  const spi::CodecSegment& entry = chunk->segments[segment].segment;
  const std::span<float> total = sums.first(chunk->codec->sum_floats(entry, round));
  STRETTO_TRY(absorb(segment, total));
  const auto scale = static_cast<float>(1.0 / static_cast<double>(total_samples));
  if (kind == Kind::kResolve) {
    const Status resolved = chunk->codec->resolve(
        entry, round_of(rank), total, scale, memory_of(segment), result_of(segment));
    return resolved.is_ok() ? resolved : named(resolved, segment, nullptr);
  }
  spi::CodecMemory owners;
  if (memory.owner_residual != nullptr) {
    owners.residual = memory.owner_residual + chunk->segments[segment].first_element;
    owners.left = memory.owner_left + chunk->segments[segment].first_element;
  }
  const auto done =
      chunk->codec->conclude(entry, round_of(Rank{ranks}), total, scale, owners, room_of(segment));
  if (!done) {
    return named(done.error(), segment, nullptr);
  }
  const std::span<const std::byte> written = wire.subspan(at_, done->wire_bytes);
  take(*done, segment);
  const Status decoded =
      chunk->codec->decode(entry, round_of(rank), written, memory_of(segment), result_of(segment));
  return decoded.is_ok() ? decoded : named(decoded, segment, nullptr);
}

Status CodedWork::decode(std::size_t segment) {
  std::span<const std::byte> of_segment;
  const Status decoded = next_wire(*chunk, segment, round, wire, at_, of_segment)
                             ? chunk->codec->decode(chunk->segments[segment].segment,
                                                    round_of(rank),
                                                    of_segment,
                                                    memory_of(segment),
                                                    result_of(segment))
                             : cut_short();
  if (decoded.is_ok()) {
    return decoded;
  }
  const CodedPart owner{wire, total_samples, chunk->owner, 0};
  return named(decoded, segment, &owner);
}

Status CodedWork::named(const Status& error, std::size_t segment, const CodedPart* part) const {
  std::string text = "step " + std::to_string(step) + ", " +
                     std::string(chunk->segments[segment].name) + ", codec " +
                     chunk->codec->traits().name + ": ";
  if (part != nullptr) {
    text += "what rank " + std::to_string(index_of(part->rank)) + " sent cannot be used: ";
  }
  return {error.code(),
          text + std::string(error.message()) +
              "; do all ranks run the same build, on machines whose memory and links are sound?"};
}

}  // namespace stretto::exchange

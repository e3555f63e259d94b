// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/exchange.hpp"
#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stretto::exchange {

// The arithmetic of a coded chunk, without a thread, a message or a clock.
//
// The wire of a chunk in a round: if the codec's wires have no fixed length, the length of each
// segment's wire (u32 each, little-endian); then the segments' wires, one behind the other.

/// Bytes that the wire of a chunk may have in a round, at most.
std::size_t most_wire_bytes(const spi::ChunkDescription& chunk, unsigned round) noexcept;
/// The same, over all rounds.
std::size_t most_wire_bytes(const spi::ChunkDescription& chunk) noexcept;
/// Floats that a segment of the chunk may be summed up in, at most.
std::size_t most_sum_floats(const spi::ChunkDescription& chunk) noexcept;

/// One rank's wire, for reduce.
struct CodedPart {
  std::span<const std::byte> wire;  ///< empty where the rank has no samples
  std::uint64_t samples = 0;
  Rank rank{0};
  std::size_t at = 0;  ///< where the next segment's wire begins; run keeps it
};

/// One call of the codec for every segment of a chunk.
///
/// Threading: confined(whoever has it); `run` may be called on another thread than the rest.
struct CodedWork {
  enum class Kind : std::uint8_t {
    kEncode,   ///< contribution -> wire
    kReduce,   ///< parts -> wire, and what it says -> result
    kResolve,  ///< parts -> result
    kDecode,   ///< wire -> result
    kClear,    ///< no rank has samples: zeros -> result
  };
  Kind kind = Kind::kEncode;
  const spi::ChunkDescription* chunk = nullptr;
  spi::CodedMemory memory;
  const std::byte* contribution = nullptr;  ///< of the chunk; null: this rank has no samples
  std::byte* result = nullptr;              ///< of the chunk
  unsigned round = 0;
  std::uint64_t step = 0;
  Rank rank{0};
  std::uint32_t ranks = 1;
  std::uint64_t total_samples = 0;
  std::span<std::byte> wire;   ///< kEncode, kReduce: room; kDecode: what came
  std::span<CodedPart> parts;  ///< in rank order
  std::span<float> sums;       ///< room for most_sum_floats, while it runs

  // What came of it:
  std::size_t wire_bytes = 0;
  spi::CodedFacts facts;
  Status status;

  /// Does it.  An error names the parameter, and the rank whose wire it was.
  void run() noexcept;

 private:
  Status run_segments();
  Status encode(std::size_t segment);
  Status reduce(std::size_t segment);
  Status decode(std::size_t segment);
  Status absorb(std::size_t segment, std::span<float> total);
  spi::CodecMemory memory_of(std::size_t segment) const noexcept;
  spi::CodecRound round_of(Rank source) const noexcept;
  std::span<std::byte> result_of(std::size_t segment) const noexcept;
  std::span<std::byte> room_of(std::size_t segment) noexcept;
  void take(const spi::Encoding& encoding, std::size_t segment) noexcept;
  Status named(const Status& error, std::size_t segment, const CodedPart* part) const;

  std::size_t at_ = 0;  ///< of `wire`: where the next segment's begins
  std::size_t state_at_ = 0;
  std::size_t scratch_at_ = 0;
};

/// Leaves a rank's residual and state as they were, in a step in which it has no samples.
void keep_memory(const spi::ChunkDescription& chunk, const spi::CodedMemory& memory) noexcept;

/// Floats of state or of scratch of all segments of a chunk, as CodedMemory lays them out.
std::size_t state_floats(const spi::ChunkDescription& chunk) noexcept;
std::size_t scratch_floats(const spi::ChunkDescription& chunk) noexcept;

}  // namespace stretto::exchange

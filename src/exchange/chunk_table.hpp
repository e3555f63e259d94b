// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/exchange.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stretto::exchange {

/// How chunks fall into shards, and which rank owns each.  The same on all ranks.
///
/// Threading: immutable.
class ChunkTable {
 public:
  struct Chunk {
    spi::ChunkDescription description;
    std::size_t first_shard = 0;  ///< in the numbering over all chunks
    std::size_t shard_count = 0;
    std::size_t shard_elements = 0;  ///< of every shard but the last
    bool one_hop = false;            ///< everyone reduces it
  };

  /// A chunk of up to `one_hop_bytes` is one shard that goes to everyone; others are cut into as
  /// many shards as there are ranks, at multiples of 64 bytes (fewer if the chunk is too short for
  /// that).
  static ChunkTable make(std::span<const spi::ChunkDescription> chunks,
                         std::size_t ranks,
                         std::size_t one_hop_bytes);

  std::size_t chunk_count() const noexcept { return chunks_.size(); }
  std::size_t shard_count() const noexcept { return chunk_of_.size(); }
  const Chunk& chunk(std::size_t chunk) const noexcept { return chunks_[chunk]; }
  std::size_t chunk_of(std::size_t shard) const noexcept { return chunk_of_[shard]; }
  spi::Exchange::ShardRange range(std::size_t chunk, std::size_t shard_in_chunk) const noexcept;
  /// Bytes of a shard, by its number over all chunks.
  std::size_t shard_bytes(std::size_t shard) const noexcept;
  Rank owner(std::size_t shard) const noexcept;
  std::size_t largest_shard_bytes() const noexcept;

 private:
  std::vector<Chunk> chunks_;
  std::vector<std::uint32_t> chunk_of_;  ///< by shard
  std::size_t ranks_ = 1;
};

}  // namespace stretto::exchange

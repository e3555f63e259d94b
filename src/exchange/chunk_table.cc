// SPDX-License-Identifier: Apache-2.0
#include "exchange/chunk_table.hpp"

#include <algorithm>
#include <string>

namespace stretto::exchange {

ChunkTable ChunkTable::make(std::span<const spi::ChunkDescription> chunks,
                            std::size_t ranks,
                            std::size_t one_hop_bytes) {
  ChunkTable table;
  table.ranks_ = ranks;
  const bool any_coded = std::any_of(
      chunks.begin(), chunks.end(), [](const auto& chunk) { return chunk.codec != nullptr; });
  for (const spi::ChunkDescription& description : chunks) {
    Chunk chunk;
    chunk.description = description;
    chunk.first_shard = table.chunk_of_.size();
    const std::size_t n = description.element_count;
    const std::size_t unit = 64 / size_of(description.dtype);
    const bool coded = description.codec != nullptr;
    const bool small = n * size_of(description.dtype) <= one_hop_bytes;
    chunk.one_hop = any_coded ? one_hop_bytes == SIZE_MAX : small;
    chunk.shard_elements = n;
    if (!coded && !small) {
      chunk.shard_elements = ((n + ranks - 1) / ranks + unit - 1) / unit * unit;
    }
    chunk.shard_count = n == 0 ? 0 : (n + chunk.shard_elements - 1) / chunk.shard_elements;
    table.chunk_of_.insert(
        table.chunk_of_.end(), chunk.shard_count, static_cast<std::uint32_t>(table.chunks_.size()));
    table.chunks_.push_back(chunk);
  }
  return table;
}

spi::Exchange::ShardRange ChunkTable::range(std::size_t chunk,
                                            std::size_t shard_in_chunk) const noexcept {
  const Chunk& entry = chunks_[chunk];
  const std::size_t first = shard_in_chunk * entry.shard_elements;
  return {first, std::min(entry.shard_elements, entry.description.element_count - first)};
}

std::size_t ChunkTable::shard_bytes(std::size_t shard) const noexcept {
  const std::size_t chunk = chunk_of_[shard];
  const Chunk& entry = chunks_[chunk];
  return range(chunk, shard - entry.first_shard).count * size_of(entry.description.dtype);
}

Rank ChunkTable::owner(std::size_t shard) const noexcept {
  const std::size_t chunk = chunk_of_[shard];
  if (chunks_[chunk].description.codec != nullptr) {
    return chunks_[chunk].description.owner;
  }
  // Chunks start at different owners, so that chunks with few shards do not all burden rank 0.
  return Rank{static_cast<std::uint32_t>((shard - chunks_[chunk].first_shard + chunk) % ranks_)};
}

std::size_t ChunkTable::largest_shard_bytes() const noexcept {
  std::size_t largest = 0;
  for (std::size_t shard = 0; shard < chunk_of_.size(); ++shard) {
    largest = std::max(largest, shard_bytes(shard));
  }
  return largest;
}

Result<std::size_t> ChunkTable::check_plan(const spi::ChunkSubmission& submission,
                                           std::uint64_t latest) const {
  const std::size_t chunk = index_of(submission.chunk);
  const std::size_t all = chunk < chunks_.size() ? chunks_[chunk].shard_count : 0;
  if (chunk >= chunks_.size() || submission.first_shard > all ||
      submission.shard_count > all - submission.first_shard) {
    return fail(StatusCode::kInvalidArgument,
                "chunk " + std::to_string(chunk) + " with these shards is not in the plan");
  }
  if (submission.step < latest || submission.step > latest + 1) {
    return fail(StatusCode::kInvalidArgument,
                "step " + std::to_string(submission.step) + " was submitted after step " +
                    std::to_string(latest) + "; steps follow one another");
  }
  return submission.shard_count == 0 ? all - submission.first_shard : submission.shard_count;
}

tl::unexpected<Status> ChunkTable::twice(const spi::ChunkSubmission& submission) {
  return fail(StatusCode::kInvalidArgument,
              "chunk " + std::to_string(index_of(submission.chunk)) +
                  " was submitted twice in step " + std::to_string(submission.step));
}

}  // namespace stretto::exchange

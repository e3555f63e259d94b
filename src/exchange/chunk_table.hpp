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
  /// that).  A coded chunk is one shard.  Among coded chunks nothing goes to everyone, unless all
  /// does: the step takes two hops anyway, and with many ranks the heads of so many small messages
  /// would be a part of what travels.
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

  /// Exchange::shards_of and Exchange::shard_range.
  std::size_t shards_of(ChunkId chunk) const noexcept {
    return chunks_[index_of(chunk)].shard_count;
  }
  spi::Exchange::ShardRange shard_range(ChunkId chunk, std::size_t shard) const noexcept {
    return range(index_of(chunk), shard);
  }

  /// How many shards a submission names.
  ///
  /// `latest` is the last step that was submitted to; `submitted(shard, step)` says whether a
  /// shard, by its number over all chunks, was submitted in that step.
  /// Errors: kInvalidArgument for shards that are not in the plan, a step that does not follow, or
  ///         a shard that came before in this step.
  template <typename Submitted>
  Result<std::size_t> check(const spi::ChunkSubmission& submission,
                            std::uint64_t latest,
                            const Submitted& submitted) const {
    STRETTO_TRY_ASSIGN(const std::size_t count, check_plan(submission, latest));
    const std::size_t first = count == 0 ? 0 : first_of(submission);
    for (std::size_t shard = first; shard < first + count; ++shard) {
      if (submitted(shard, submission.step)) {
        return twice(submission);
      }
    }
    return count;
  }

  /// Calls `submit(shard in the chunk)` for `count` shards of a submission that was checked.  In
  /// rotation: rank r begins with the shard of r + 1, so that the ranks do not all serve one.
  template <typename Submit>
  Status in_rotation(const spi::ChunkSubmission& submission,
                     std::size_t count,
                     Rank own,
                     const Submit& submit) const {
    const std::size_t chunk = index_of(submission.chunk);
    const std::size_t turn = (index_of(own) + 1 + ranks_ - chunk % ranks_) % ranks_;
    const std::size_t all = chunks_[chunk].shard_count;
    for (std::size_t i = 0; i < all; ++i) {
      const std::size_t shard = (turn + i) % all;
      if (shard >= submission.first_shard && shard < submission.first_shard + count) {
        STRETTO_TRY(submit(shard));
      }
    }
    return {};
  }

 private:
  Result<std::size_t> check_plan(const spi::ChunkSubmission& submission,
                                 std::uint64_t latest) const;
  std::size_t first_of(const spi::ChunkSubmission& submission) const noexcept {
    return chunks_[index_of(submission.chunk)].first_shard + submission.first_shard;
  }
  static tl::unexpected<Status> twice(const spi::ChunkSubmission& submission);

  std::vector<Chunk> chunks_;
  std::vector<std::uint32_t> chunk_of_;  ///< by shard
  std::size_t ranks_ = 1;
};

}  // namespace stretto::exchange

// SPDX-License-Identifier: Apache-2.0
// The part of OwnerExchange that is particular to coded shards: rounds, and work on codec threads.
#include "exchange/owner.hpp"

#include <algorithm>

namespace stretto::exchange {

Status OwnerExchange::check_codecs(std::span<const spi::ChunkDescription> chunks) const {
  for (const spi::ChunkDescription& chunk : chunks) {
    if (chunk.codec == nullptr) {
      continue;
    }
    if (index_of(chunk.owner) >= ranks_) {
      return {StatusCode::kInvalidArgument, "a coded chunk has an owner that is no rank"};
    }
    if (chunk.codec->traits().rounds > 1 && options_.one_hop_bytes == SIZE_MAX) {
      return {StatusCode::kInvalidArgument,
              "the codec " + chunk.codec->traits().name +
                  " needs owners that sum its factors; choose the exchange owner"};
    }
  }
  return {};
}

unsigned OwnerExchange::most_rounds() const noexcept {
  unsigned most = 1;
  for (std::size_t chunk = 0; chunk < table_.chunk_count(); ++chunk) {
    const spi::Codec* codec = table_.chunk(chunk).description.codec;
    most = std::max(most, codec == nullptr ? 1 : codec->traits().rounds);
  }
  return most;
}

unsigned OwnerExchange::round_of(std::size_t index) const noexcept {
  return is_coded(index) ? coder_.round(index) : 0;
}

/// Bytes that one rank's part of a shard may have, at most.
std::size_t OwnerExchange::part_bytes(std::size_t shard) const noexcept {
  return codec_of(shard) == nullptr
             ? table_.shard_bytes(shard)
             : most_wire_bytes(table_.chunk(table_.chunk_of(shard)).description);
}

void OwnerExchange::begin_round(std::size_t index) {
  slots_[index].encoded = false;
  if (slots_[index].samples > 0) {
    coder_.encode(index);
  } else {
    on_encoded(index);
  }
}

void OwnerExchange::on_encoded(std::size_t index) {
  slots_[index].encoded = true;
  if (ranks_ > 1) {
    send_parts(index);
  }
  if (reduces(index / 2)) {
    reduce_if_complete(index);
  }
}

void OwnerExchange::reduce_coded(std::size_t index) {
  Slot& slot = slots_[index];
  slot.total_samples = add_samples(index);
  if (slot.total_samples == 0) {
    coder_.clear(index);
    return;
  }
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    const std::uint64_t samples = samples_of(index, rank);
    std::span<const std::byte> wire;
    if (samples > 0) {
      wire = rank == index_of(transport_.rank()) ? coder_.own_wire(index, coder_.round(index))
                                                 : scratch_of(index, rank);
    }
    coder_.set_part(index, rank, samples, wire);
  }
  const bool one_hop = table_.chunk(table_.chunk_of(index / 2)).one_hop;
  coder_.reduce(index, slot.total_samples, !one_hop);
}

void OwnerExchange::decode_mean(std::size_t index) {
  if (slots_[index].total_samples == 0) {
    coder_.clear(index);
  } else {
    coder_.decode(index, slots_[index].total_samples);
  }
}

void OwnerExchange::collect_coded() {
  coder_.collect([this](std::size_t index, const CodedWork& work) { on_coded(index, work); });
}

void OwnerExchange::on_coded(std::size_t index, const CodedWork& work) {
  if (!work.status.is_ok()) {
    error_ = error_.is_ok() ? work.status : error_;
    return;
  }
  spi::CodedFacts& facts = slots_[index].facts;
  facts.refused += work.facts.refused;
  facts.first_refused_segment =
      std::min(facts.first_refused_segment, work.facts.first_refused_segment);
  facts.value_squares += work.facts.value_squares;
  facts.left_squares += work.facts.left_squares;
  if (work.kind == CodedWork::Kind::kEncode) {
    on_encoded(index);
    return;
  }
  end_round(index);
}

/// This rank has the mean of a round.  Whoever reduced it passes it on; then the next round begins,
/// or the shard is home.
void OwnerExchange::end_round(std::size_t index) {
  Slot& slot = slots_[index];
  const bool is_owner = reduces(index / 2) && !table_.chunk(table_.chunk_of(index / 2)).one_hop;
  if (is_owner && ranks_ > 1) {
    send_results(index);
  }
  if (coder_.is_last_round(index) || slot.total_samples == 0) {
    if (reduces(index / 2)) {
      free_block(index);
    }
    arrive_home(index);
    return;
  }
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    part(index, rank).state = Part::State::kNone;
  }
  slot.arrived = 0;
  slot.reducing = false;
  slot.receiving = false;
  coder_.next_round(index);
  begin_round(index);
}

}  // namespace stretto::exchange

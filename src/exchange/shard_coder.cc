// SPDX-License-Identifier: Apache-2.0
#include "exchange/shard_coder.hpp"

#include <algorithm>

namespace stretto::exchange {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) noexcept {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Status ShardCoder::configure(const ChunkTable& table, std::size_t ranks, Rank rank) {
  const auto is_coded = [&](std::size_t shard) {
    return table.chunk(table.chunk_of(shard)).description.codec != nullptr;
  };
  const std::size_t shards = table.shard_count();
  items_.clear();
  bool any = false;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    any = any || is_coded(shard);
  }
  if (!any) {
    return {};
  }
  if (streams_.empty()) {
    return {StatusCode::kInvalidArgument, "this exchange was made without a stream for codecs"};
  }
  if (!device_.host_accessible()) {
    return {StatusCode::kUnsupported,
            "codecs work on memory that the processor can read, and that of the device " +
                std::string(device_.name()) + " is not; choose the codec none"};
  }
  items_.resize(2 * shards);
  works_ = std::vector<StreamWork>(streams_.size());
  for (StreamWork& work : works_) {
    work.reset(2 * shards);
  }
  std::size_t bytes = 0;
  std::size_t floats = 0;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    if (!is_coded(shard)) {
      continue;
    }
    const spi::ChunkDescription& chunk = table.chunk(table.chunk_of(shard)).description;
    const unsigned rounds = chunk.codec->traits().rounds;
    const std::size_t capacity = aligned(most_wire_bytes(chunk));
    for (const std::size_t slot : {2 * shard, 2 * shard + 1}) {
      STRETTO_TRY(works_[stream_of(slot)].add_event(device_, slot));
      Item& entry = items_[slot];
      entry.work.chunk = &chunk;
      entry.work.rank = rank;
      entry.work.ranks = static_cast<std::uint32_t>(ranks);
      entry.parts.resize(ranks);
      // Both parities share their wires: a step begins when nothing of the one before is read.
      entry.wires_at = bytes;
      entry.capacity = capacity;
      entry.own_bytes.resize(rounds);
      entry.mean_bytes.resize(rounds);
    }
    bytes += 2 * rounds * capacity;
    floats = std::max(floats, most_sum_floats(chunk));
  }
  sums_.assign(streams_.size(), std::vector<float>(floats));
  if (wires_ == nullptr || wires_->size() < bytes) {
    wires_.reset();
    STRETTO_TRY_ASSIGN(wires_, device_.allocate(bytes));
  }
  return {};
}

void ShardCoder::begin(std::size_t slot, const spi::ChunkSubmission& submission) {
  CodedWork& work = item(slot).work;
  work.memory = submission.memory;
  work.contribution = submission.samples == 0 ? nullptr : submission.contribution;
  work.result = submission.result;
  work.step = submission.step;
  work.round = 0;
  if (submission.samples == 0) {
    keep_memory(*work.chunk, submission.memory);
  }
}

bool ShardCoder::is_last_round(std::size_t slot) const noexcept {
  const CodedWork& work = item(slot).work;
  return work.round + 1 == work.chunk->codec->traits().rounds;
}

std::span<std::byte> ShardCoder::wire_room(const Item& entry, std::size_t number) const noexcept {
  return {wires_->data() + entry.wires_at + number * entry.capacity, entry.capacity};
}

void ShardCoder::take_length(Item& entry) noexcept {
  const CodedWork& work = entry.work;
  if (work.kind == CodedWork::Kind::kEncode) {
    entry.own_bytes[work.round] = work.wire_bytes;
  } else if (work.kind == CodedWork::Kind::kReduce) {
    entry.mean_bytes[work.round] = work.wire_bytes;
  }
}

std::span<const std::byte> ShardCoder::own_wire(std::size_t slot, unsigned round) const noexcept {
  const Item& entry = item(slot);
  return wire_room(entry, round).first(entry.own_bytes[round]);
}

std::span<const std::byte> ShardCoder::mean_wire(std::size_t slot, unsigned round) const noexcept {
  const Item& entry = item(slot);
  return wire_room(entry, entry.own_bytes.size() + round).first(entry.mean_bytes[round]);
}

std::span<std::byte> ShardCoder::mean_room(std::size_t slot, std::size_t bytes) noexcept {
  Item& entry = item(slot);
  entry.mean_bytes[entry.work.round] = bytes;
  return wire_room(entry, entry.own_bytes.size() + entry.work.round).first(bytes);
}

void ShardCoder::push(std::size_t slot, CodedWork::Kind kind) {
  Item& entry = item(slot);
  entry.work.kind = kind;
  entry.work.parts = entry.parts;
  entry.work.sums = sums_[stream_of(slot)];
  works_[stream_of(slot)].push(slot);
}

void ShardCoder::encode(std::size_t slot) {
  item(slot).work.wire = wire_room(item(slot), item(slot).work.round);
  push(slot, CodedWork::Kind::kEncode);
}

void ShardCoder::set_part(std::size_t slot,
                          std::size_t rank,
                          std::uint64_t samples,
                          std::span<const std::byte> wire) noexcept {
  item(slot).parts[rank] = {wire, samples, Rank{static_cast<std::uint32_t>(rank)}, 0};
}

void ShardCoder::reduce(std::size_t slot, std::uint64_t total_samples, bool encodes_mean) {
  Item& entry = item(slot);
  entry.work.total_samples = total_samples;
  entry.work.wire = wire_room(entry, entry.own_bytes.size() + entry.work.round);
  push(slot, encodes_mean ? CodedWork::Kind::kReduce : CodedWork::Kind::kResolve);
}

void ShardCoder::decode(std::size_t slot, std::uint64_t total_samples) {
  Item& entry = item(slot);
  entry.work.total_samples = total_samples;
  entry.work.wire = wire_room(entry, entry.own_bytes.size() + entry.work.round)
                        .first(entry.mean_bytes[entry.work.round]);
  push(slot, CodedWork::Kind::kDecode);
}

void ShardCoder::clear(std::size_t slot) {
  push(slot, CodedWork::Kind::kClear);
}

bool ShardCoder::has_waiting() const noexcept {
  return std::any_of(
      works_.begin(), works_.end(), [](const StreamWork& work) { return work.has_waiting(); });
}

Status ShardCoder::post() {
  for (std::size_t s = 0; s < works_.size(); ++s) {
    STRETTO_TRY(works_[s].post(
        *streams_[s], [this](std::size_t slot) { return post_one(slot); }, [](std::size_t) {}));
  }
  return {};
}

Status ShardCoder::post_one(std::size_t slot) {
  CodedWork& work = item(slot).work;
  spi::Operation call;
  call.kind = spi::Operation::Kind::kCall;
  call.call = [](void* argument) { static_cast<CodedWork*>(argument)->run(); };
  call.argument = &work;
  call.dtype = work.chunk->dtype;
  const bool writes_result = work.kind != CodedWork::Kind::kEncode && is_last_round(slot);
  if (writes_result) {
    call.destination = work.result;
    call.element_count = work.chunk->element_count;
  }
  return streams_[stream_of(slot)]->post(call);
}

}  // namespace stretto::exchange

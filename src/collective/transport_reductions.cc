// SPDX-License-Identifier: Apache-2.0
// The part of TransportCommunicator that adds: plans for the exchange, and its steps.
#include "base/byte_order.hpp"
#include "base/hash.hpp"
#include "collective/transport_communicator.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace stretto::collective {

Status TransportCommunicator::begin_reduction() {
  const Call& call = jobs_.front().call;
  const std::size_t blocks = call.kind == Kind::kReduceScatter ? size() : 1;
  const std::size_t bytes = blocks * call.count * call.width();
  if (call.kind == Kind::kReduceScatter && (scratch_ == nullptr || scratch_->size() < bytes)) {
    STRETTO_TRY_ASSIGN(scratch_, device_->allocate(bytes));
  }
  // The exchange knows elements only: a reduce_scatter is a reduction of all blocks.
  Call whole = call;
  whole.kind = Kind::kAllReduce;
  whole.count = blocks * call.count;
  ++plan_.step;
  plan_.next_chunk = 0;
  plan_.home = 0;
  plan_.released = 0;
  return plan_.number > 0 && whole == plan_.call ? Status() : take_plan(whole);
}

Status TransportCommunicator::take_plan(const Call& call) {
  const std::size_t piece =
      std::max<std::size_t>(options_.chunk_bytes_for(call.count * call.width()) / call.width(), 1);
  std::vector<spi::ChunkDescription> chunks;
  for (std::size_t first = 0; first < call.count; first += piece) {
    chunks.push_back(
        {BucketId{0},
         call.dtype,
         std::min(piece, call.count - first),
         call.reduction == Reduction::kMean ? spi::Combine::kMean : spi::Combine::kSum});
  }
  ByteWriter shape;
  shape.put(call.count);
  shape.put(call.dtype);
  shape.put(call.reduction);
  const std::uint64_t hash = hash_bytes(shape.bytes());
  ++plan_.number;
  STRETTO_TRY(exchange_->configure(chunks, hash, plan_.number));
  transport_->open(plan_.number, hash);
  plan_.call = call;
  plan_.chunks = chunks.size();
  plan_.chunk_elements = piece;
  plan_.shards = 0;
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    plan_.shards += exchange_->shards_of(ChunkId{static_cast<std::uint32_t>(chunk)});
  }
  return {};
}

Status TransportCommunicator::submit() {
  const Job& job = jobs_.front();
  const bool scatters = job.call.kind == Kind::kReduceScatter;
  std::byte* const output = scatters ? scratch_->data() : job.output;
  for (; plan_.next_chunk < plan_.chunks; ++plan_.next_chunk) {
    const std::size_t offset = plan_.next_chunk * plan_.chunk_elements * job.call.width();
    spi::ChunkSubmission submission;
    submission.step = plan_.step;
    submission.chunk = ChunkId{static_cast<std::uint32_t>(plan_.next_chunk)};
    submission.contribution = job.input + offset;
    submission.result = output + offset;
    submission.priority = static_cast<std::uint32_t>(plan_.next_chunk);
    const Status status = exchange_->submit(submission);
    if (status.code() == StatusCode::kWouldBlock) {
      return {};
    }
    STRETTO_TRY(status);
  }
  return {};
}

Result<bool> TransportCommunicator::advance_reduction() {
  STRETTO_TRY(submit());
  std::array<spi::ExchangeEvent, 64> events;
  STRETTO_TRY_ASSIGN(const std::size_t came, exchange_->poll(events));
  for (std::size_t i = 0; i < came; ++i) {
    const bool is_result = events[i].kind == spi::ExchangeEvent::Kind::kResult;
    (is_result ? plan_.home : plan_.released) += events[i].shard_count;
  }
  if (plan_.home < plan_.shards || plan_.released < plan_.shards) {
    return came > 0;
  }
  const Job& job = jobs_.front();
  const std::size_t bytes = job.call.count * job.call.width();
  if (job.call.kind == Kind::kReduceScatter) {
    std::memcpy(job.output, scratch_->data() + rank() * bytes, bytes);
  }
  end();
  return true;
}

}  // namespace stretto::collective

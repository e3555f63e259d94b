// SPDX-License-Identifier: Apache-2.0
#include "engine/stepper.hpp"

#include "base/cpu_time.hpp"
#include "base/fault_point.hpp"

#include <algorithm>

namespace stretto::engine {

Stepper::Stepper(const StepperParts& parts)
    : parts_(parts),
      parameters_(parts.parameters.size()),
      footer_code_(parts.ranks),
      footer_values_(element_count(parts.parameters.back().shape)) {
  seen_order_.resize(footer());
  expected_order_.resize(footer());
  for (std::size_t p = 0; p < footer(); ++p) {
    expected_order_[p] = static_cast<std::uint32_t>(p);
  }
  seen_order_ = expected_order_;
}

Result<std::unique_ptr<Stepper>> Stepper::make(const StepperParts& parts) {
  auto stepper = std::unique_ptr<Stepper>(new Stepper(parts));
  STRETTO_TRY_ASSIGN(stepper->stream_, parts.device->make_stream());
  return stepper;
}

std::byte* Stepper::slot(std::size_t parameter) const noexcept {
  const schedule::Layout::Place& place = parts_.layout->places[parameter];
  const schedule::Layout::Bucket& bucket = parts_.layout->buckets[index_of(place.bucket)];
  return parts_.contributions + bucket.first_byte + place.first_element * size_of(bucket.dtype);
}

std::byte* Stepper::slot(const Piece& piece) const noexcept {
  return slot(piece.parameter) +
         piece.first_element * size_of(parts_.parameters[piece.parameter].dtype);
}

Status Stepper::set_plan(const schedule::Plan& plan,
                         std::span<const std::uint32_t> order,
                         std::uint32_t epoch) {
  plan_ = plan;
  is_coded_ = false;
  if (!order.empty()) {
    std::copy(order.begin(),
              order.begin() + static_cast<std::ptrdiff_t>(footer()),
              expected_order_.begin());
  }
  std::vector<spi::ChunkDescription> descriptions;
  descriptions.reserve(plan.chunks.size());
  for (const schedule::Plan::Chunk& chunk : plan.chunks) {
    if (chunk.group) {
      is_coded_ = true;
      descriptions.push_back(
          schedule::describe_group(*parts_.layout, *parts_.coding, *chunk.group));
      continue;
    }
    const DType dtype = parts_.layout->buckets[index_of(chunk.bucket)].dtype;
    const bool is_footer = chunk.bucket == parts_.layout->places[footer()].bucket;
    descriptions.push_back({chunk.bucket,
                            dtype,
                            chunk.element_count,
                            is_footer ? spi::Combine::kSum : spi::Combine::kMean});
  }
  STRETTO_TRY(parts_.exchange->configure(descriptions, plan.hash, epoch));
  chunks_.assign(plan.chunks.size(), ChunkState{});
  std::size_t shards = 0;
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    chunks_[c].first_shard = shards;
    chunks_[c].shard_count = parts_.exchange->shards_of(ChunkId{static_cast<std::uint32_t>(c)});
    shards += chunks_[c].shard_count;
  }
  shards_.assign(shards, ShardState{});
  partial_.clear();
  partial_.reserve(chunks_.size());
  map_parameters_to_shards();
  copying_.reserve(pieces_.size());
  for (Piece& piece : pieces_) {
    STRETTO_TRY_ASSIGN(piece.copied, parts_.device->make_event());
  }
  return {};
}

void Stepper::map_parameters_to_shards() {
  expected_remaining_.assign(shards_.size(), 0);
  first_in_shard_.assign(shards_.size(), 0);
  pieces_.clear();
  // Chunks and parameters are both in memory order, so one pass over each is enough.
  std::size_t chunk = 0;
  for (std::size_t at = 0; at < parts_.layout->order.size(); ++at) {
    const ParameterId id = parts_.layout->order[at];
    const schedule::Layout::Place& place = parts_.layout->places[index_of(id)];
    ParameterState& parameter = parameters_[index_of(id)];
    parameter.first_shard = 0;
    parameter.shard_count = 0;
    parameter.first_piece = pieces_.size();
    parameter.piece_count = 0;
    const std::size_t end = place.first_element + place.element_count;
    const auto ends_before = [&](const schedule::Plan::Chunk& c) {
      return c.bucket < place.bucket ||
             (c.bucket == place.bucket && c.first_element + c.element_count <= place.first_element);
    };
    while (chunk < plan_.chunks.size() && ends_before(plan_.chunks[chunk])) {
      ++chunk;
    }
    for (std::size_t c = chunk; c < plan_.chunks.size(); ++c) {
      const schedule::Plan::Chunk& entry = plan_.chunks[c];
      if (entry.bucket != place.bucket || entry.first_element >= end) {
        break;
      }
      for (std::size_t s = 0; s < chunks_[c].shard_count; ++s) {
        const auto range = parts_.exchange->shard_range(ChunkId{static_cast<std::uint32_t>(c)}, s);
        const std::size_t first = entry.first_element + range.first;
        if (first < end && place.first_element < first + range.count) {
          const std::size_t shard = chunks_[c].first_shard + s;
          if (parameter.shard_count == 0) {
            parameter.first_shard = static_cast<std::uint32_t>(shard);
          }
          ++parameter.shard_count;
          if (expected_remaining_[shard]++ == 0) {
            first_in_shard_[shard] = static_cast<std::uint32_t>(at);
          }
          const std::size_t begin = std::max(first, place.first_element);
          add_to_piece(index_of(id),
                       shard,
                       begin - place.first_element,
                       std::min(end, first + range.count) - begin);
        }
      }
    }
  }
}

/// Adds a shard's part of a parameter to its last piece, or begins another.
void Stepper::add_to_piece(std::size_t parameter,
                           std::size_t shard,
                           std::size_t first_element,
                           std::size_t element_count) {
  // Large enough to copy well, small enough that the first is on its way within a tenth of a
  // millisecond.
  constexpr std::size_t kPieceBytes = std::size_t{256} << 10;
  ParameterState& state = parameters_[parameter];
  const std::size_t width = size_of(parts_.parameters[parameter].dtype);
  if (state.piece_count == 0 || pieces_.back().element_count * width >= kPieceBytes) {
    Piece piece;
    piece.parameter = static_cast<std::uint32_t>(parameter);
    piece.first_shard = static_cast<std::uint32_t>(shard);
    piece.first_element = first_element;
    pieces_.push_back(std::move(piece));
    ++state.piece_count;
  }
  ++pieces_.back().shard_count;
  pieces_.back().element_count += element_count;
}

Status Stepper::handle(const Command& command) {
  switch (command.kind) {
    case Command::Kind::kBegin:
      begin(command);
      return {};
    case Command::Kind::kReady:
      return ready(command);
    case Command::Kind::kFinish:
      return finish(command);
    default:
      return {};
  }
}

void Stepper::begin(const Command& command) {
  fault_point("step.begin", index_of(parts_.rank));
  begun_ = command;
  step_open_ = true;
  finishing_ = false;
  home_ = 0;
  released_ = 0;
  in_flight_ = 0;
  seen_ = 0;
  copying_.clear();
  copying_first_ = 0;
  partial_.clear();
  parts_.board->outcome = StepOutcome{};
  parts_.board->outcome.step = command.step;
  if (is_coded_) {
    parts_.feedback->begin_step(samples_of(Rule::kMean, false), command.learning_rate);
  }
  counters_at_begin_ = parts_.transport->counters();
  cpu_at_begin_ = thread_cpu_seconds();
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    shards_[s] = {expected_remaining_[s], false};
  }
  for (ChunkState& chunk : chunks_) {
    chunk.ready_shards = 0;
    chunk.submitted_shards = 0;
    chunk.home_shards = 0;
    chunk.partial = false;
  }
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    ParameterState& parameter = parameters_[p];
    parameter.away = parameter.shard_count;
    parameter.touched = false;
    parameter.queued = false;
    parameter.non_finite = 0;
    parameter.ready = TimePoint{};
    if (parameter.shard_count == 0) {  // without elements it is home as it is
      parts_.board->home_step[p].store(command.step, std::memory_order_release);
    }
  }
}

Result<bool> Stepper::advance(TimePoint now) {
  if (!step_open_) {
    stream_->drain();  // a sign may come behind the event that it is for
    // The exchange may have to serve ranks that are already in the next step.
    return collect_results(now);
  }
  STRETTO_TRY_ASSIGN(bool moved, collect_copies(now));
  STRETTO_TRY(flush(now));
  STRETTO_TRY_ASSIGN(const bool came, collect_results(now));
  end_if_done(now);
  return moved || came;
}

TimePoint Stepper::next_due() const noexcept {
  TimePoint due = parts_.exchange->next_due();
  if (step_open_ && parts_.options.schedule != Schedule::kSequential) {
    for (const std::uint32_t chunk : partial_) {
      due = std::min(due, chunks_[chunk].news + parts_.options.flush_after);
    }
  }
  return due;
}

}  // namespace stretto::engine

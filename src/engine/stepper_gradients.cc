// SPDX-License-Identifier: Apache-2.0
// The half of Stepper that takes gradients and sends them off.
#include "base/fault_point.hpp"
#include "base/log.hpp"
#include "engine/stepper.hpp"
#include "kernels/kernels.hpp"

#include <algorithm>
#include <string>

namespace stretto::engine {

Status Stepper::ready(const Command& command) {
  if (!step_open_) {
    return {StatusCode::kInternal, "a gradient came outside of a step"};
  }
  ParameterState& parameter = parameters_[command.parameter];
  if (!taking_) {
    taking_ = true;
    parts_.recorder->add({trace::What::kReady,
                          trace::Lane::kGradients,
                          command.parameter,
                          begun_.step,
                          command.when,
                          command.when});
    accumulates_ = parameter.touched;
    parameter.touched = true;
    parameter.ready = command.when;
  }
  // Where a call would block, the command comes again and goes on from here.
  while (pieces_taken_ < parameter.piece_count) {
    const std::size_t at = parameter.first_piece + pieces_taken_;
    if (!piece_posted_) {
      STRETTO_TRY(take_over(command, pieces_[at]));
      piece_posted_ = true;
    }
    if (command.last_pass) {
      STRETTO_TRY(stream_->record(*pieces_[at].copied));
      copying_.push_back(static_cast<std::uint32_t>(at));
    }
    piece_posted_ = false;
    ++pieces_taken_;
    if (command.last_pass && pieces_taken_ < parameter.piece_count) {
      STRETTO_TRY(send_early());
    }
  }
  pieces_taken_ = 0;
  taking_ = false;
  if (command.last_pass) {
    seen_order_[command.parameter] = seen_++;
    parameter.queued = true;
  }
  return {};
}

/// Brings a piece of a gradient into the arena: one copy, or one addition from the second backward
/// pass on.
Status Stepper::take_over(const Command& command, const Piece& piece) {
  if (command.produced != nullptr && pieces_taken_ == 0) {
    STRETTO_TRY(stream_->wait_for(*command.produced));
  }
  const std::byte* whole = slot(command.parameter);
  if (command.gradient == nullptr || command.gradient == whole) {
    return {};
  }
  const DType dtype = parts_.parameters[command.parameter].dtype;
  spi::Operation copy;
  copy.kind = accumulates_ ? spi::Operation::Kind::kAccumulate : spi::Operation::Kind::kCopy;
  copy.dtype = dtype;
  copy.element_count = piece.element_count;
  copy.destination = slot(piece);
  copy.source_count = 1;
  copy.source[0] = command.gradient + piece.first_element * size_of(dtype);
  return stream_->post(copy);
}

/// A large gradient leaves in pieces: the first are on their way while the rest is still copied.
Status Stepper::send_early() {
  const TimePoint now = Clock::now();
  STRETTO_TRY_ASSIGN(const bool launched, collect_copies(now));
  if (launched) {
    STRETTO_TRY(collect_results(now));
  }
  return {};
}

Status Stepper::finish(const Command& command) {
  FooterCode::clear(footer_values_);
  for (std::size_t p = 0; p < footer(); ++p) {
    if (parameters_[p].touched) {
      footer_code_.set(footer_values_, kFlags + p);
    }
    if (!parameters_[p].queued) {
      STRETTO_TRY(leave_out(p));
    }
  }
  STRETTO_TRY(write_footer());
  finishing_ = true;
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    if (chunks_[c].ready_shards > chunks_[c].submitted_shards && !chunks_[c].partial) {
      chunks_[c].partial = true;
      partial_.push_back(static_cast<std::uint32_t>(c));
    }
  }
  return flush(command.when);
}

/// A parameter that the last backward pass did not reach: what earlier ones left travels, else
/// zeros.
Status Stepper::leave_out(std::size_t parameter) {
  ParameterState& state = parameters_[parameter];
  if (!state.touched) {
    spi::Operation zero;
    zero.kind = spi::Operation::Kind::kZero;
    zero.dtype = parts_.parameters[parameter].dtype;
    zero.element_count = element_count(parts_.parameters[parameter].shape);
    zero.destination = slot(parameter);
    STRETTO_TRY(stream_->post(zero));
  }
  STRETTO_TRY(record_pieces(parameter));
  state.queued = true;
  parts_.board->outcome.unused += state.touched ? 0 : 1;
  return {};
}

/// What was posted for a parameter arrives as a whole.
Status Stepper::record_pieces(std::size_t parameter) {
  const ParameterState& state = parameters_[parameter];
  const std::size_t end = state.first_piece + state.piece_count;
  for (std::size_t at = state.first_piece; at < end; ++at) {
    STRETTO_TRY(stream_->record(*pieces_[at].copied));
  }
  for (std::size_t at = state.first_piece; at < end; ++at) {
    copying_.push_back(static_cast<std::uint32_t>(at));
  }
  return {};
}

Status Stepper::write_footer() {
  constexpr double kDrift = 0.1;
  fault_point("step.footer", index_of(parts_.rank));
  if (begun_.ended) {
    footer_code_.set(footer_values_, kEnded);
  }
  const bool propose = index_of(parts_.rank) == 0 && !begun_.broadcast && seen_ > 0 &&
                       schedule::order_drift(expected_order_, seen_order_) > kDrift;
  if (propose) {
    footer_code_.set(footer_values_, kReplan);
  }
  spi::Operation copy;
  copy.kind = spi::Operation::Kind::kCopy;
  copy.element_count = footer_values_.size();
  copy.destination = slot(footer());
  copy.source_count = 1;
  copy.source[0] = reinterpret_cast<const std::byte*>(footer_values_.data());
  STRETTO_TRY(stream_->post(copy));
  return record_pieces(footer());
}

Result<bool> Stepper::collect_copies(TimePoint now) {
  bool moved = false;
  // Also when nothing is under way: a sign may come behind the event that it is for.
  stream_->drain();
  while (copying_first_ < copying_.size() && pieces_[copying_[copying_first_]].copied->done()) {
    STRETTO_TRY(arrive(pieces_[copying_[copying_first_]], now));
    ++copying_first_;
    moved = true;
  }
  return moved;
}

Status Stepper::arrive(const Piece& piece, TimePoint now) {
  const ParameterState& state = parameters_[piece.parameter];
  const bool is_last = &piece == &pieces_[state.first_piece + state.piece_count - 1];
  if (is_last) {
    parts_.board->taken_step[piece.parameter].store(begun_.step, std::memory_order_release);
  }
  if (is_last && state.ready != TimePoint{}) {
    parts_.recorder->add({trace::What::kTaken,
                          trace::Lane::kGradients,
                          piece.parameter,
                          begun_.step,
                          state.ready,
                          now});
  }
  check_finite(piece);
  std::size_t chunk = SIZE_MAX;
  for (std::size_t s = piece.first_shard; s < piece.first_shard + piece.shard_count; ++s) {
    if (--shards_[s].remaining > 0) {
      continue;
    }
    if (chunk == SIZE_MAX || s >= chunks_[chunk].first_shard + chunks_[chunk].shard_count) {
      chunk = chunk_of(s);
    }
    ChunkState& entry = chunks_[chunk];
    ++entry.ready_shards;
    entry.news = now;
    if (parts_.options.schedule == Schedule::kSequential && !finishing_) {
      continue;
    }
    if (entry.ready_shards == entry.shard_count) {
      STRETTO_TRY(launch(chunk, now));
    } else if (!entry.partial) {
      entry.partial = true;
      partial_.push_back(static_cast<std::uint32_t>(chunk));
    }
  }
  return {};
}

std::size_t Stepper::chunk_of(std::size_t shard) const noexcept {
  const auto after = std::upper_bound(
      chunks_.begin(), chunks_.end(), shard, [](std::size_t s, const ChunkState& chunk) {
        return s < chunk.first_shard;
      });
  return static_cast<std::size_t>(after - chunks_.begin() - 1);
}

/// Counts what is not finite in a piece, and says so once the parameter is complete.
void Stepper::check_finite(const Piece& piece) {
  ParameterState& state = parameters_[piece.parameter];
  if (piece.parameter == footer() || !parts_.device->host_accessible() || !state.touched ||
      parts_.parameters[piece.parameter].rule != Rule::kMean || begun_.broadcast) {
    return;
  }
  const BucketId bucket = parts_.layout->places[piece.parameter].bucket;
  if (parts_.layout->buckets[index_of(bucket)].codec != 0) {
    return;  // its codec looks in the same pass in which it encodes
  }
  const ParameterSpec& spec = parts_.parameters[piece.parameter];
  state.non_finite += kernels::count_non_finite(spec.dtype, slot(piece), piece.element_count);
  const bool is_last = &piece == &pieces_[state.first_piece + state.piece_count - 1];
  if (is_last && state.non_finite > 0 && parts_.board->outcome.non_finite++ == 0) {
    log(LogLevel::kWarning,
        "step " + std::to_string(begun_.step) + ": the gradient of " + spec.name + " has " +
            std::to_string(state.non_finite) + " values that are not finite on this rank");
  }
}

/// Submits every shard of the chunk that is ready and has not left.
Status Stepper::launch(std::size_t chunk, TimePoint now) {
  const ChunkState& entry = chunks_[chunk];
  std::size_t s = 0;
  while (s < entry.shard_count) {
    const auto is_due = [&](std::size_t shard) {
      const ShardState& state = shards_[entry.first_shard + shard];
      return state.remaining == 0 && !state.submitted;
    };
    if (!is_due(s)) {
      ++s;
      continue;
    }
    std::size_t end = s + 1;
    while (end < entry.shard_count && is_due(end)) {
      ++end;
    }
    STRETTO_TRY(launch_run(chunk, s, end - s, now));
    s = end;
  }
  return {};
}

Status Stepper::launch_run(std::size_t chunk, std::size_t first, std::size_t count, TimePoint now) {
  const schedule::Plan::Chunk& entry = plan_.chunks[chunk];
  const schedule::Layout::Bucket& bucket = parts_.layout->buckets[index_of(entry.bucket)];
  const std::size_t offset = bucket.first_byte + entry.first_element * size_of(bucket.dtype);
  spi::ChunkSubmission submission;
  submission.step = begun_.step;
  submission.chunk = ChunkId{static_cast<std::uint32_t>(chunk)};
  submission.first_shard = first;
  submission.shard_count = count;
  submission.contribution = parts_.contributions + offset;
  submission.result = parts_.results + offset;
  const bool is_footer = entry.bucket == parts_.layout->places[footer()].bucket;
  submission.samples = samples_of(bucket.rule, is_footer);
  submission.priority = entry.priority;
  if (entry.group) {
    submission.memory = parts_.feedback->memory(*entry.group);
  }
  STRETTO_TRY(parts_.exchange->submit(submission));
  fault_point("chunk.launched", index_of(parts_.rank));
  if (in_flight_ == 0) {
    busy_since_ = now;
  }
  ChunkState& state = chunks_[chunk];
  if (state.submitted_shards == 0) {
    state.launched = now;
    ++parts_.board->outcome.chunks;
  }
  in_flight_ += count;
  state.submitted_shards += count;
  for (std::size_t s = first; s < first + count; ++s) {
    shards_[state.first_shard + s].submitted = true;
  }
  return {};
}

std::uint64_t Stepper::samples_of(Rule rule, bool is_footer) const noexcept {
  const std::uint64_t only_root = index_of(parts_.rank) == 0 ? 1 : 0;
  if (is_footer) {
    return 1;
  }
  if (begun_.broadcast || rule == Rule::kRootValue) {
    return only_root;
  }
  if (rule == Rule::kRankMean) {
    return begun_.ended ? 0 : 1;
  }
  return begun_.samples;
}

/// Sends the ready shards of chunks that wait too long for the rest, or that will get no more.
Status Stepper::flush(TimePoint now) {
  if (parts_.options.schedule == Schedule::kSequential && !finishing_) {
    return {};
  }
  const bool partial = parts_.exchange->traits().partial_chunks;
  std::size_t kept = 0;
  for (const std::uint32_t chunk : partial_) {
    ChunkState& state = chunks_[chunk];
    const bool complete = state.submitted_shards == state.shard_count;
    const bool due = partial ? finishing_ || now - state.news >= parts_.options.flush_after
                             : state.ready_shards == state.shard_count;
    if (!complete && due) {
      STRETTO_TRY(launch(chunk, now));
    }
    if (complete || due) {
      state.partial = false;
    } else {
      partial_[kept++] = chunk;
    }
  }
  partial_.resize(kept);
  return {};
}

}  // namespace stretto::engine

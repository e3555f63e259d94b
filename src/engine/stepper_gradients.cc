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
  if (!taken_over_) {
    STRETTO_TRY(take_over(command));
    taken_over_ = true;  // if recording would block, the copy is not repeated
  }
  if (command.last_pass) {
    STRETTO_TRY(stream_->record(*parameter.copied));
  }
  taken_over_ = false;
  parts_.recorder->add({trace::What::kReady,
                        trace::Lane::kGradients,
                        command.parameter,
                        begun_.step,
                        command.when,
                        command.when});
  parameter.touched = true;
  if (!command.last_pass) {
    return {};
  }
  seen_order_[command.parameter] = seen_++;
  parameter.queued = true;
  parameter.ready = command.when;
  copying_.push_back(command.parameter);
  return {};
}

/// Brings a gradient into the arena: one copy, or one addition from the second backward pass on.
Status Stepper::take_over(const Command& command) {
  if (command.produced != nullptr) {
    STRETTO_TRY(stream_->wait_for(*command.produced));
  }
  std::byte* destination = slot(command.parameter);
  if (command.gradient == nullptr || command.gradient == destination) {
    return {};
  }
  const ParameterSpec& spec = parts_.parameters[command.parameter];
  spi::Operation copy;
  copy.kind = parameters_[command.parameter].touched ? spi::Operation::Kind::kAccumulate
                                                     : spi::Operation::Kind::kCopy;
  copy.dtype = spec.dtype;
  copy.element_count = element_count(spec.shape);
  copy.destination = destination;
  copy.source_count = 1;
  copy.source[0] = command.gradient;
  return stream_->post(copy);
}

Status Stepper::finish(const Command& command) {
  for (std::size_t p = 0; p < footer(); ++p) {
    footer_values_[kFlags + p] = parameters_[p].touched ? 1.0F : 0.0F;
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
  STRETTO_TRY(stream_->record(*state.copied));
  state.queued = true;
  parts_.board->outcome.unused += state.touched ? 0 : 1;
  copying_.push_back(static_cast<std::uint32_t>(parameter));
  return {};
}

Status Stepper::write_footer() {
  constexpr double kDrift = 0.1;
  fault_point("step.footer", index_of(parts_.rank));
  footer_values_[kEnded] = begun_.ended ? 1.0F : 0.0F;
  const bool propose = index_of(parts_.rank) == 0 && !begun_.broadcast && seen_ > 0 &&
                       schedule::order_drift(expected_order_, seen_order_) > kDrift;
  footer_values_[kReplan] = propose ? 1.0F : 0.0F;
  spi::Operation copy;
  copy.kind = spi::Operation::Kind::kCopy;
  copy.element_count = footer_values_.size();
  copy.destination = slot(footer());
  copy.source_count = 1;
  copy.source[0] = reinterpret_cast<const std::byte*>(footer_values_.data());
  STRETTO_TRY(stream_->post(copy));
  STRETTO_TRY(stream_->record(*parameters_[footer()].copied));
  copying_.push_back(static_cast<std::uint32_t>(footer()));
  return {};
}

Result<bool> Stepper::collect_copies(TimePoint now) {
  bool moved = false;
  if (copying_first_ < copying_.size()) {
    stream_->drain();
  }
  while (copying_first_ < copying_.size() && parameters_[copying_[copying_first_]].copied->done()) {
    STRETTO_TRY(arrive(copying_[copying_first_], now));
    ++copying_first_;
    moved = true;
  }
  return moved;
}

Status Stepper::arrive(std::size_t parameter, TimePoint now) {
  const ParameterState& state = parameters_[parameter];
  if (state.ready != TimePoint{}) {
    parts_.recorder->add({trace::What::kTaken,
                          trace::Lane::kGradients,
                          static_cast<std::uint32_t>(parameter),
                          begun_.step,
                          state.ready,
                          now});
  }
  if (parameter < footer()) {
    check_finite(parameter);
  }
  std::size_t chunk = SIZE_MAX;
  for (std::size_t s = state.first_shard; s < state.first_shard + state.shard_count; ++s) {
    if (--shards_[s].remaining > 0) {
      continue;
    }
    if (chunk == SIZE_MAX || s >= chunks_[chunk].first_shard + chunks_[chunk].shard_count) {
      chunk = static_cast<std::size_t>(std::upper_bound(chunks_.begin(),
                                                        chunks_.end(),
                                                        s,
                                                        [](std::size_t shard, const ChunkState& c) {
                                                          return shard < c.first_shard;
                                                        }) -
                                       chunks_.begin() - 1);
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

void Stepper::check_finite(std::size_t parameter) {
  if (!parts_.device->host_accessible() || !parameters_[parameter].touched ||
      parts_.parameters[parameter].rule != Rule::kMean || begun_.broadcast) {
    return;
  }
  const ParameterSpec& spec = parts_.parameters[parameter];
  const std::size_t bad =
      kernels::count_non_finite(spec.dtype, slot(parameter), element_count(spec.shape));
  if (bad > 0) {
    if (parts_.board->outcome.non_finite++ == 0) {
      log(LogLevel::kWarning,
          "step " + std::to_string(begun_.step) + ": the gradient of " + spec.name + " has " +
              std::to_string(bad) + " values that are not finite on this rank");
    }
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
  return rule == Rule::kRankMean ? 1 : begun_.samples;
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

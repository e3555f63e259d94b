// SPDX-License-Identifier: Apache-2.0
#include "engine/stepper.hpp"

#include "base/fault_point.hpp"
#include "base/log.hpp"
#include "kernels/kernels.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <thread>

#include <time.h>

namespace stretto::engine {
namespace {

/// Processor seconds of the calling thread.
double thread_cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

Stepper::Stepper(const StepperParts& parts)
    : parts_(parts), parameters_(parts.parameters.size()), footer_values_(kFlags) {
  copying_.reserve(parameters_.size());
  seen_order_.resize(footer());
  expected_order_.resize(footer());
  for (std::size_t p = 0; p < footer(); ++p) {
    expected_order_[p] = static_cast<std::uint32_t>(p);
  }
  seen_order_ = expected_order_;
  footer_values_.resize(kFlags + footer());
}

Result<std::unique_ptr<Stepper>> Stepper::make(const StepperParts& parts) {
  auto stepper = std::unique_ptr<Stepper>(new Stepper(parts));
  STRETTO_TRY_ASSIGN(stepper->stream_, parts.device->make_stream());
  STRETTO_TRY_ASSIGN(stepper->quiet_, parts.device->make_event());
  for (ParameterState& parameter : stepper->parameters_) {
    STRETTO_TRY_ASSIGN(parameter.copied, parts.device->make_event());
  }
  return stepper;
}

void Stepper::quiesce(Deadline deadline) noexcept {
  Status recorded = stream_->record(*quiet_);
  while (recorded.code() == StatusCode::kWouldBlock && !deadline.passed()) {
    std::this_thread::yield();
    recorded = stream_->record(*quiet_);
  }
  if (!recorded.is_ok() || !quiet_->wait(deadline).is_ok()) {
    log(LogLevel::kWarning, "a copy of a gradient did not end; its memory may still be read");
  }
}

std::byte* Stepper::slot(std::size_t parameter) const noexcept {
  const schedule::Layout::Place& place = parts_.layout->places[parameter];
  const schedule::Layout::Bucket& bucket = parts_.layout->buckets[index_of(place.bucket)];
  return parts_.contributions + bucket.first_byte + place.first_element * size_of(bucket.dtype);
}

Status Stepper::set_plan(const schedule::Plan& plan,
                         std::span<const std::uint32_t> order,
                         std::uint32_t epoch) {
  plan_ = plan;
  if (!order.empty()) {
    std::copy(order.begin(),
              order.begin() + static_cast<std::ptrdiff_t>(footer()),
              expected_order_.begin());
  }
  std::vector<spi::ChunkDescription> descriptions;
  descriptions.reserve(plan.chunks.size());
  for (const schedule::Plan::Chunk& chunk : plan.chunks) {
    const DType dtype = parts_.layout->buckets[index_of(chunk.bucket)].dtype;
    descriptions.push_back({chunk.bucket, dtype, chunk.element_count});
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
  return {};
}

void Stepper::map_parameters_to_shards() {
  expected_remaining_.assign(shards_.size(), 0);
  first_in_shard_.assign(shards_.size(), 0);
  // Chunks and parameters are both in memory order, so one pass over each is enough.
  std::size_t chunk = 0;
  for (std::size_t at = 0; at < parts_.layout->order.size(); ++at) {
    const ParameterId id = parts_.layout->order[at];
    const schedule::Layout::Place& place = parts_.layout->places[index_of(id)];
    ParameterState& parameter = parameters_[index_of(id)];
    parameter.first_shard = 0;
    parameter.shard_count = 0;
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
        }
      }
    }
  }
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
    parameter.ready = TimePoint{};
    if (parameter.shard_count == 0) {  // without elements it is home as it is
      parts_.board->home_step[p].store(command.step, std::memory_order_release);
    }
  }
}

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

Result<bool> Stepper::advance(TimePoint now) {
  if (!step_open_) {
    // The exchange may have to serve ranks that are already in the next step.
    return collect_results(now);
  }
  STRETTO_TRY_ASSIGN(bool moved, collect_copies(now));
  STRETTO_TRY(flush(now));
  STRETTO_TRY_ASSIGN(const bool came, collect_results(now));
  end_if_done(now);
  return moved || came;
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

Result<bool> Stepper::collect_results(TimePoint now) {
  std::array<spi::ExchangeEvent, 64> events;
  bool moved = false;
  while (true) {
    STRETTO_TRY_ASSIGN(const std::size_t count, parts_.exchange->poll(events));
    for (std::size_t i = 0; i < count; ++i) {
      if (events[i].kind == spi::ExchangeEvent::Kind::kReleased) {
        released_ += events[i].shard_count;
      } else {
        shard_home(events[i], now);
      }
    }
    moved = moved || count > 0;
    if (count < events.size()) {
      return moved;
    }
  }
}

void Stepper::shard_home(const spi::ExchangeEvent& event, TimePoint now) {
  const std::size_t chunk = index_of(event.chunk);
  ChunkState& state = chunks_[chunk];
  home_ += event.shard_count;
  in_flight_ -= event.shard_count;
  if (in_flight_ == 0) {
    parts_.board->outcome.busy.add({busy_since_, now});
  }
  state.home_shards += event.shard_count;
  if (state.home_shards == state.shard_count) {
    parts_.recorder->add({trace::What::kChunk,
                          trace::Lane::kWire,
                          static_cast<std::uint32_t>(chunk),
                          begun_.step,
                          state.launched,
                          now});
  }
  const BucketId bucket = plan_.chunks[chunk].bucket;
  const bool is_footer = bucket == parts_.layout->places[footer()].bucket;
  if (is_footer && event.last) {
    parts_.board->outcome.last_rank = event.last;
  }
  if (!is_footer && parts_.layout->buckets[index_of(bucket)].rule == Rule::kMean) {
    parts_.board->outcome.samples = event.samples;
  }
  bool opened = false;
  const std::size_t first = state.first_shard + event.first_shard;
  for (std::size_t s = first; s < first + event.shard_count; ++s) {
    std::uint32_t left = expected_remaining_[s];
    for (std::size_t at = first_in_shard_[s]; left > 0; ++at) {
      const std::size_t p = index_of(parts_.layout->order[at]);
      ParameterState& parameter = parameters_[p];
      if (s < parameter.first_shard || s >= parameter.first_shard + parameter.shard_count) {
        continue;  // without elements
      }
      --left;
      if (--parameter.away == 0) {
        parts_.recorder->add({trace::What::kHome,
                              trace::Lane::kGradients,
                              static_cast<std::uint32_t>(p),
                              begun_.step,
                              now,
                              now});
        parts_.board->home_step[p].store(begun_.step, std::memory_order_release);
        opened = true;
      }
    }
  }
  if (opened) {
    parts_.board->changed.notify();
  }
}

void Stepper::end_if_done(TimePoint now) {
  if (!finishing_ || home_ < shards_.size() || released_ < shards_.size() ||
      copying_first_ < copying_.size()) {
    return;
  }
  StepOutcome& outcome = parts_.board->outcome;
  const spi::TransportCounters counters = parts_.transport->counters();
  outcome.payload_bytes = counters.payload_bytes_sent - counters_at_begin_.payload_bytes_sent;
  outcome.wire_bytes = counters.wire_bytes_sent - counters_at_begin_.wire_bytes_sent;
  outcome.cpu_s = thread_cpu_seconds() - cpu_at_begin_;
  const schedule::Layout::Place& place = parts_.layout->places[footer()];
  const schedule::Layout::Bucket& bucket = parts_.layout->buckets[index_of(place.bucket)];
  const auto* values = reinterpret_cast<const float*>(parts_.results + bucket.first_byte +
                                                      place.first_element * sizeof(float));
  // Means of zeros and ones over the ranks: 1 only if all said so, above 0 if any did.
  outcome.all_ended = values[kEnded] > 0.999F;
  outcome.replan = values[kReplan] > 0;
  step_open_ = false;
  parts_.recorder->add({trace::What::kStep, trace::Lane::kSteps, 0, begun_.step, begun_.when, now});
  parts_.board->done_step.store(begun_.step, std::memory_order_release);
  parts_.board->changed.notify();
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

/// The first parameter of a shard, for error texts.
std::string Stepper::first_parameters(std::size_t chunk, std::size_t shard) const {
  const std::size_t at = first_in_shard_[chunks_[chunk].first_shard + shard];
  const std::size_t p = index_of(parts_.layout->order[at]);
  return p == footer() ? "the end of the step" : parts_.parameters[p].name;
}

std::string Stepper::describe_waiting() const {
  std::string text = "step " + std::to_string(begun_.step);
  if (!step_open_) {
    return text + ", nothing in flight";
  }
  std::size_t away = 0;
  std::string example;
  for (const ParameterId id : parts_.layout->order) {
    if (index_of(id) != footer() && parameters_[index_of(id)].away > 0 && away++ == 0) {
      example = parts_.parameters[index_of(id)].name;
    }
  }
  if (away > 0) {
    text += ", waiting for " + example;
    text += away > 1 ? " and " + std::to_string(away - 1) + " more parameters" : "";
  } else {
    text += finishing_ ? ", waiting for the end of the step" : ", nothing in flight";
  }
  struct Debt {
    std::size_t shards = 0;
    std::string example;
  };
  std::map<std::size_t, Debt> debts;
  std::set<std::size_t> owners;
  for (const spi::PendingShard& shard : parts_.exchange->pending()) {
    for (const Rank rank : shard.missing) {
      if (!shard.reduced_here) {
        owners.insert(index_of(rank));
      } else if (Debt& debt = debts[index_of(rank)]; debt.shards++ == 0) {
        debt.example = first_parameters(index_of(shard.chunk), shard.shard);
      }
    }
  }
  for (const auto& [rank, debt] : debts) {
    text += "; rank " + std::to_string(rank) + " has not sent " + debt.example;
    text += debt.shards > 1 ? " and " + std::to_string(debt.shards - 1) + " more shards" : "";
  }
  if (debts.empty()) {
    for (const std::size_t rank : owners) {
      text += "; the sum of rank " + std::to_string(rank) + " has not come";
    }
  }
  return text;
}

}  // namespace stretto::engine

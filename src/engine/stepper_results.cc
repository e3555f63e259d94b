// SPDX-License-Identifier: Apache-2.0
// The half of Stepper that takes what comes back, ends the step, and says what it waits for.
#include "base/cpu_time.hpp"
#include "base/log.hpp"
#include "engine/stepper.hpp"

#include <array>
#include <map>
#include <set>
#include <string>

namespace stretto::engine {

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
  account(event.coded, chunk);
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

/// What a codec has found and left in a chunk.
void Stepper::account(const spi::CodedFacts& facts, std::size_t chunk) {
  StepOutcome& outcome = parts_.board->outcome;
  outcome.value_squares += facts.value_squares;
  outcome.left_squares += facts.left_squares;
  outcome.refused += facts.refused;
  if (facts.refused == 0 || !plan_.chunks[chunk].group) {
    return;
  }
  if (outcome.non_finite++ == 0) {
    const schedule::Layout::Group& group = parts_.layout->groups[*plan_.chunks[chunk].group];
    const std::size_t segment = group.first_segment + facts.first_refused_segment;
    log(LogLevel::kWarning,
        "step " + std::to_string(begun_.step) + ": the gradient of " +
            std::string(parts_.layout->segments[segment].name) + " has values that are not " +
            "finite, or beyond 2^60, on this rank; the codec took " +
            std::to_string(facts.refused) + " of them for 0");
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
  const std::span<const float> sums(values, place.element_count);
  outcome.all_ended = footer_code_.count(sums, kEnded) == parts_.ranks;
  outcome.replan = footer_code_.count(sums, kReplan) > 0;
  if (is_coded_) {
    parts_.feedback->end_step(outcome.samples);
  }
  step_open_ = false;
  parts_.recorder->add({trace::What::kStep, trace::Lane::kSteps, 0, begun_.step, begun_.when, now});
  parts_.board->done_step.store(begun_.step, std::memory_order_release);
  parts_.board->changed.notify();
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

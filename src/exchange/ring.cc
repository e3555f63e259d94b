// SPDX-License-Identifier: Apache-2.0
#include "exchange/ring.hpp"

#include "base/fault_point.hpp"
#include "exchange/watch_all.hpp"

#include <algorithm>
#include <array>

namespace stretto::exchange {

Result<std::unique_ptr<spi::Exchange>> make_ring_exchange(spi::Transport& transport,
                                                          spi::Device& device,
                                                          const RingOptions& options) {
  STRETTO_TRY_ASSIGN(auto stream, device.make_stream());
  FileDescriptor both;
  if (stream->descriptor() >= 0) {
    STRETTO_TRY_ASSIGN(both, watch_all(std::array{transport.descriptor(), stream->descriptor()}));
  }
  return std::make_unique<RingExchange>(
      transport, std::move(stream), std::move(both), device, options);
}

RingExchange::RingExchange(spi::Transport& transport,
                           std::unique_ptr<spi::Stream> stream,
                           FileDescriptor both,
                           spi::Device& device,
                           const RingOptions& options)
    : transport_(transport),
      device_(device),
      both_(std::move(both)),
      options_(options),
      ranks_(transport.size()),
      stream_(std::move(stream)) {
  traits_.name = "ring";
  traits_.order = spi::SumOrder::kNative;
  traits_.partial_chunks = true;
  traits_.any_order = true;
}

Result<std::unique_ptr<spi::Buffer>> RingExchange::allocate_arena(spi::Device& device,
                                                                  std::size_t bytes) {
  return device.allocate(bytes);
}

Status RingExchange::configure(std::span<const spi::ChunkDescription> chunks,
                               std::uint64_t plan_hash,
                               std::uint32_t epoch) {
  if (!std::all_of(slots_.begin(), slots_.end(), [this](const Slot& slot) { return done(slot); })) {
    return {StatusCode::kInvalidArgument, "the plan cannot change while shards are in flight"};
  }
  table_ = ChunkTable::make(chunks, ranks_, 0);
  plan_hash_ = plan_hash;
  epoch_ = epoch;
  const std::size_t slots = 2 * table_.shard_count();
  slots_.assign(slots, Slot{});
  sums_.reset(slots);
  for (std::size_t index = 0; index < slots; ++index) {
    STRETTO_TRY(sums_.add_event(device_, index));
  }
  outgoing_ = FixedRing<Outgoing>(2 * slots + 1);
  events_ = FixedRing<spi::ExchangeEvent>(2 * slots + 1);
  // Of each shard at most a sum and a result, in each of two steps; few of very many at once.
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 14;
  transport_.reserve(std::min(2 * slots, kMostAtOnce));
  return allocate_buffers();
}

Status RingExchange::allocate_buffers() {
  std::vector<std::size_t> shards(ranks_, 0);  // by hop
  std::size_t most_elements = 0;
  for (std::size_t shard = 0; shard < table_.shard_count(); ++shard) {
    ++shards[hop(shard)];
    most_elements = std::max(most_elements, elements(shard));
  }
  buffer_bytes_ = (most_elements * sizeof(float) + 63) / 64 * 64;
  const std::size_t share =
      options_.scratch_bytes / ranks_ / std::max<std::size_t>(buffer_bytes_, 1);
  classes_.assign(ranks_, Class{});
  std::size_t buffers = 0;
  for (std::size_t hop = 0; hop < ranks_ && ranks_ > 1; ++hop) {
    const std::size_t count = std::min(std::max<std::size_t>(share, 1), 2 * shards[hop]);
    for (std::size_t i = 0; i < count; ++i) {
      classes_[hop].free.push_back(static_cast<std::int32_t>(buffers++));
    }
    classes_[hop].waiting.reserve(2 * shards[hop]);
  }
  // Kept if it is enough: plans may come in turn.
  if (scratch_ == nullptr || scratch_->size() < buffers * buffer_bytes_) {
    scratch_.reset();
    STRETTO_TRY_ASSIGN(scratch_, device_.allocate(buffers * buffer_bytes_));
  }
  return {};
}

std::size_t RingExchange::elements(std::size_t shard) const noexcept {
  const std::size_t chunk = table_.chunk_of(shard);
  return table_.range(chunk, shard - table_.chunk(chunk).first_shard).count;
}

std::byte* RingExchange::buffer_of(std::size_t index) const noexcept {
  return scratch_->data() + static_cast<std::size_t>(slots_[index].buffer) * buffer_bytes_;
}

Status RingExchange::submit(const spi::ChunkSubmission& submission) {
  STRETTO_TRY(error_);
  const auto submitted = [this](std::size_t shard, std::uint64_t step) {
    const Slot& slot = slots_[slot_index(shard, step)];
    return slot.submitted && slot.step == step;
  };
  STRETTO_TRY_ASSIGN(const std::size_t count, table_.check(submission, step_, submitted));
  step_ = submission.step;
  STRETTO_TRY(table_.in_rotation(submission, count, transport_.rank(), [&](std::size_t shard) {
    return submit_shard(submission, shard);
  }));
  STRETTO_TRY(give_buffers());
  return send_waiting();
}

Status RingExchange::submit_shard(const spi::ChunkSubmission& submission, std::size_t shard) {
  const std::size_t chunk = index_of(submission.chunk);
  const std::size_t number = table_.chunk(chunk).first_shard + shard;
  const std::size_t index = slot_index(number, submission.step);
  Slot& slot = slots_[index];
  if (slot.step != submission.step) {
    open(index, submission.step);
  }
  const std::size_t offset =
      table_.range(chunk, shard).first * size_of(table_.chunk(chunk).description.dtype);
  slot.contribution = submission.samples == 0 ? nullptr : submission.contribution + offset;
  slot.result = submission.result + offset;
  slot.samples = submission.samples;
  slot.priority = submission.priority;
  slot.submitted = true;
  slot.released = false;
  if (hop(number) == 0) {
    slot.empty = true;  // nobody stands before this rank
    slot.announced = true;
  }
  if (slot.announced) {
    begin(index);
  }
  return check_lost(index);
}

void RingExchange::open(std::size_t index, std::uint64_t step) {
  slots_[index] = Slot{};
  slots_[index].step = step;
}

/// This rank's part is here and the sum so far has been announced: fetches it, or adds at once.
void RingExchange::begin(std::size_t index) {
  const Slot& slot = slots_[index];
  const bool sends_payload = !is_last(index / 2) && slot.samples > 0;
  if (slot.empty && !sends_payload) {
    add(index);
    return;
  }
  Class& buffers = classes_[hop(index / 2)];
  buffers.waiting.push_back(static_cast<std::uint32_t>(index));
  std::push_heap(buffers.waiting.begin(),
                 buffers.waiting.end(),
                 [this](std::uint32_t a, std::uint32_t b) { return later(a, b); });
}

bool RingExchange::later(std::uint32_t a, std::uint32_t b) const noexcept {
  return std::pair(slots_[a].step, slots_[a].priority) >
         std::pair(slots_[b].step, slots_[b].priority);
}

Status RingExchange::give_buffers() {
  for (Class& buffers : classes_) {
    while (!buffers.waiting.empty() && !buffers.free.empty()) {
      const std::uint32_t index = buffers.waiting.front();
      std::pop_heap(buffers.waiting.begin(),
                    buffers.waiting.end(),
                    [this](std::uint32_t a, std::uint32_t b) { return later(a, b); });
      buffers.waiting.pop_back();
      Slot& slot = slots_[index];
      slot.buffer = buffers.free.back();
      buffers.free.pop_back();
      if (slot.empty) {
        add(index);
      } else {
        const std::size_t bytes = elements(index / 2) * sizeof(float);
        STRETTO_TRY(transport_.accept(previous(), slot.message, {buffer_of(index), bytes}));
      }
    }
  }
  return {};
}

void RingExchange::free_buffer(std::size_t index) {
  Slot& slot = slots_[index];
  if (slot.buffer >= 0) {
    classes_[hop(index / 2)].free.push_back(slot.buffer);
    slot.buffer = -1;
  }
}

/// The sum of the ranks before lies in the slot's buffer, or there is none.
void RingExchange::add(std::size_t index) {
  Slot& slot = slots_[index];
  slot.samples_so_far += slot.samples;
  if (slot.samples == 0 && !is_last(index / 2)) {
    on_added(index);
  } else {
    sums_.push(index);
  }
}

Status RingExchange::post_waiting_sums() {
  return sums_.post(
      *stream_,
      [this](std::size_t index) { return post_sum(index); },
      [this](std::size_t) { fault_point("sum.posted", index_of(transport_.rank())); });
}

Status RingExchange::post_sum(std::size_t index) {
  const Slot& slot = slots_[index];
  const spi::ChunkDescription& chunk = table_.chunk(table_.chunk_of(index / 2)).description;
  spi::Operation sum;
  sum.kind = spi::Operation::Kind::kWeightedSum;
  sum.dtype = chunk.dtype;
  sum.element_count = elements(index / 2);
  sum.begins = slot.empty;
  if (slot.buffer >= 0) {
    sum.accumulator = reinterpret_cast<float*>(buffer_of(index));
  }
  if (slot.samples > 0) {
    sum.source_count = 1;
    sum.source[0] = slot.contribution;
    sum.weight[0] = static_cast<float>(slot.samples);
  }
  sum.finishes = is_last(index / 2);
  if (sum.finishes) {
    sum.destination = slot.result;
    if (slot.samples_so_far == 0) {
      sum.kind = spi::Operation::Kind::kZero;
    } else if (chunk.combine == spi::Combine::kMean) {
      sum.scale = static_cast<float>(1.0 / static_cast<double>(slot.samples_so_far));
    }
  }
  return stream_->post(sum);
}

void RingExchange::collect_sums() {
  sums_.collect(*stream_, [this](std::size_t index) { on_added(index); });
}

void RingExchange::on_added(std::size_t index) {
  if (is_last(index / 2)) {
    free_buffer(index);
    arrive_home(index);
  } else {
    hand_on(index, spi::Stage::kPartialSum);
  }
}

void RingExchange::arrive_home(std::size_t index) {
  slots_[index].home = true;
  report(index, spi::ExchangeEvent::Kind::kResult);
  if (next() != table_.owner(index / 2)) {
    hand_on(index, spi::Stage::kResult);
  }
  release_if_done(index);
}

void RingExchange::release_if_done(std::size_t index) {
  Slot& slot = slots_[index];
  if (slot.home && slot.sends_left == 0 && !slot.released) {
    slot.released = true;
    report(index, spi::ExchangeEvent::Kind::kReleased);
  }
}

void RingExchange::report(std::size_t index, spi::ExchangeEvent::Kind kind) {
  const Slot& slot = slots_[index];
  const std::size_t chunk = table_.chunk_of(index / 2);
  spi::ExchangeEvent event;
  event.kind = kind;
  event.step = slot.step;
  event.chunk = ChunkId{static_cast<std::uint32_t>(chunk)};
  event.first_shard = index / 2 - table_.chunk(chunk).first_shard;
  event.shard_count = 1;
  event.samples = slot.samples_so_far;
  events_.push(event);
}

/// Adds what can be added and gives buffers that came free.
Status RingExchange::advance() {
  // Twice: a buffer given in the first round lets a sum begin in the second.
  for (int round = 0; round < 2; ++round) {
    STRETTO_TRY(post_waiting_sums());
    collect_sums();
    STRETTO_TRY(give_buffers());
  }
  return send_waiting();
}

Result<std::size_t> RingExchange::poll(std::span<spi::ExchangeEvent> events) {
  STRETTO_TRY(error_);
  std::array<spi::TransportEvent, 64> moved;
  auto count = transport_.poll(moved);
  if (!count) {
    error_ = count.error();
    return fail(error_);
  }
  for (std::size_t i = 0; i < *count && error_.is_ok(); ++i) {
    error_ = take(moved[i]);
  }
  if (error_.is_ok()) {
    error_ = advance();
  }
  std::size_t reported = 0;
  while (reported < events.size() && !events_.empty()) {
    events[reported++] = events_.front();
    events_.pop();
  }
  if (reported == 0 && !error_.is_ok()) {
    return fail(error_);
  }
  return reported;
}

TimePoint RingExchange::next_due() const noexcept {
  if (!events_.empty() || sums_.has_waiting()) {
    return TimePoint::min();
  }
  return transport_.next_due();
}

std::vector<spi::PendingShard> RingExchange::pending() const {
  std::vector<spi::PendingShard> list;
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    const Slot& slot = slots_[index];
    if (!slot.submitted || slot.home) {
      continue;
    }
    const std::size_t shard = index / 2;
    const std::size_t chunk = table_.chunk_of(shard);
    // A rank knows its neighbours only: the next has not taken the sum, or nothing has come.
    const bool next_owes = slot.announced && !slot.handed_on && !is_last(shard);
    list.push_back({slot.step,
                    ChunkId{static_cast<std::uint32_t>(chunk)},
                    shard - table_.chunk(chunk).first_shard,
                    false,
                    {next_owes ? next() : previous()}});
  }
  return list;
}

}  // namespace stretto::exchange

// SPDX-License-Identifier: Apache-2.0
#include "exchange/owner.hpp"

#include "base/check.hpp"
#include "base/fault_point.hpp"
#include "exchange/watch_all.hpp"

#include <algorithm>

namespace stretto::exchange {

Result<std::unique_ptr<spi::Exchange>> make_owner_exchange(spi::Transport& transport,
                                                           spi::Device& device,
                                                           const OwnerOptions& options) {
  STRETTO_TRY_ASSIGN(auto stream, device.make_stream());
  std::vector<int> descriptors{transport.descriptor(), stream->descriptor()};
  std::vector<std::unique_ptr<spi::Stream>> coding_streams;
  spi::Device& coding_device = options.coding_device == nullptr ? device : *options.coding_device;
  for (std::size_t i = 0; i < options.coding_streams; ++i) {
    STRETTO_TRY_ASSIGN(auto made, coding_device.make_stream());
    descriptors.push_back(made->descriptor());
    coding_streams.push_back(std::move(made));
  }
  FileDescriptor all;
  if (std::any_of(descriptors.begin() + 1, descriptors.end(), [](int d) { return d >= 0; })) {
    STRETTO_TRY_ASSIGN(all, watch_all(descriptors));
  }
  return std::make_unique<OwnerExchange>(
      transport, std::move(stream), std::move(coding_streams), std::move(all), device, options);
}

OwnerExchange::OwnerExchange(spi::Transport& transport,
                             std::unique_ptr<spi::Stream> stream,
                             std::vector<std::unique_ptr<spi::Stream>> coding_streams,
                             FileDescriptor all,
                             spi::Device& device,
                             const OwnerOptions& options)
    : transport_(transport),
      device_(device),
      all_(std::move(all)),
      options_(options),
      ranks_(transport.size()),
      lost_(transport.size(), false),
      coder_(options.coding_device == nullptr ? device : *options.coding_device,
             std::move(coding_streams)),
      stream_(std::move(stream)) {
  traits_.name = options.one_hop_bytes == SIZE_MAX ? "one-hop" : "owner";
  traits_.partial_chunks = true;
  traits_.any_order = true;
  traits_.codecs = true;
}

Result<std::unique_ptr<spi::Buffer>> OwnerExchange::allocate_arena(spi::Device& device,
                                                                   std::size_t bytes) {
  return device.allocate(bytes);
}

Status OwnerExchange::configure(std::span<const spi::ChunkDescription> chunks,
                                std::uint64_t plan_hash,
                                std::uint32_t epoch) {
  if (!std::all_of(slots_.begin(), slots_.end(), [this](const Slot& slot) { return done(slot); })) {
    return {StatusCode::kInvalidArgument, "the plan cannot change while shards are in flight"};
  }
  STRETTO_TRY(check_codecs(chunks));
  table_ = ChunkTable::make(chunks, ranks_, options_.one_hop_bytes);
  plan_hash_ = plan_hash;
  epoch_ = epoch;
  const std::size_t shards = table_.shard_count();
  slots_.assign(2 * shards, Slot{});
  parts_.assign(2 * shards * ranks_, Part{});
  sums_.reset(2 * shards);
  owned_ = 0;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    if (!reduces(shard)) {
      continue;
    }
    ++owned_;
    for (std::size_t parity = 0; parity < 2; ++parity) {
      STRETTO_TRY(sums_.add_event(device_, 2 * shard + parity));
    }
  }
  settled_ = {};
  settled_[step_ & 1U] = owned_;  // the last step is over
  want_block_.clear();
  want_block_.reserve(2 * shards);
  outgoing_ = FixedRing<Outgoing>(2 * shards * ranks_ * most_rounds() + 1);
  events_ = FixedRing<spi::ExchangeEvent>(4 * shards + 1);
  // Of each shard at most a part and a result, in each of two steps; few of very many at once.
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 14;
  transport_.reserve(std::min(4 * shards, kMostAtOnce));
  STRETTO_TRY(coder_.configure(table_, ranks_, transport_.rank()));
  return allocate_scratch();
}

std::size_t OwnerExchange::owned_by(Rank rank) const noexcept {
  std::size_t owned = 0;
  for (std::size_t shard = 0; shard < table_.shard_count(); ++shard) {
    owned += reduces(shard, rank) ? 1 : 0;
  }
  return owned;
}

/// Blocks of scratch of a rank that reduces so many shards: the same count on every rank.
std::size_t OwnerExchange::blocks_for(std::size_t owned) const noexcept {
  if (ranks_ == 1 || owned == 0) {
    return 0;
  }
  return std::clamp(
      options_.scratch_bytes / std::max<std::size_t>(block_bytes_, 1), std::size_t{1}, 2 * owned);
}

Status OwnerExchange::allocate_scratch() {
  // A multiple of 64 keeps every part aligned; with many ranks a float32 accumulator stands behind.
  std::size_t largest = 0;
  for (std::size_t shard = 0; shard < table_.shard_count(); ++shard) {
    largest = std::max(largest, part_bytes(shard));
  }
  shard_capacity_ = (largest + 63) / 64 * 64;
  block_bytes_ = (ranks_ - 1) * shard_capacity_;
  if (ranks_ > spi::kMaxSources) {
    block_bytes_ += 2 * shard_capacity_;
  }
  has_room_.assign(ranks_, false);
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    const std::size_t owned = owned_by(Rank{static_cast<std::uint32_t>(rank)});
    has_room_[rank] = blocks_for(owned) == 2 * owned;
  }
  const std::size_t blocks = blocks_for(owned_);
  // Kept if it is enough: plans may come in turn.
  if (scratch_ == nullptr || scratch_->size() < blocks * block_bytes_) {
    scratch_.reset();
    STRETTO_TRY_ASSIGN(scratch_, device_.allocate(blocks * block_bytes_));
  }
  free_blocks_.clear();
  for (std::size_t block = blocks; block-- > 0;) {
    free_blocks_.push_back(static_cast<std::int32_t>(block));
  }
  return {};
}

Status OwnerExchange::submit(const spi::ChunkSubmission& submission) {
  STRETTO_TRY(error_);
  const auto submitted = [this](std::size_t shard, std::uint64_t step) {
    const Slot& slot = slots_[slot_index(shard, step)];
    return slot.submitted && slot.step == step;
  };
  STRETTO_TRY_ASSIGN(const std::size_t count, table_.check(submission, step_, submitted));
  if (submission.step > step_) {
    step_ = submission.step;
    // Nobody can be in the step after this one yet: it needs this rank's part of this one.
    settled_[(step_ + 1) & 1U] = 0;
    STRETTO_TRY(give_blocks());
  }
  STRETTO_TRY(table_.in_rotation(submission, count, transport_.rank(), [&](std::size_t shard) {
    return submit_shard(submission, shard);
  }));
  return send_waiting();
}

Status OwnerExchange::submit_shard(const spi::ChunkSubmission& submission, std::size_t shard) {
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
  if (is_coded(index)) {
    coder_.begin(index, submission);
    begin_round(index);
    return check_lost(index);
  }
  if (ranks_ > 1) {
    send_parts(index);
  }
  if (reduces(number)) {
    reduce_if_complete(index);
  }
  return check_lost(index);
}

void OwnerExchange::open(std::size_t index, std::uint64_t step) {
  slots_[index] = Slot{};
  slots_[index].step = step;
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    part(index, rank) = Part{};
  }
}

void OwnerExchange::reduce_if_complete(std::size_t index) {
  Slot& slot = slots_[index];
  if (!slot.submitted || slot.reducing || slot.arrived != ranks_ - 1) {
    return;
  }
  if (!is_coded(index)) {
    slot.reducing = true;
    sums_.push(index);
  } else if (slot.encoded) {
    slot.reducing = true;
    reduce_coded(index);
  }
}

std::uint64_t OwnerExchange::samples_of(std::size_t index, std::size_t rank) const noexcept {
  return rank == index_of(transport_.rank()) ? slots_[index].samples : part(index, rank).samples;
}

std::uint64_t OwnerExchange::add_samples(std::size_t index) const noexcept {
  std::uint64_t sum = 0;
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    sum += samples_of(index, rank);
  }
  return sum;
}

Status OwnerExchange::post_waiting_sums() {
  STRETTO_TRY(coder_.post());
  return sums_.post(
      *stream_,
      [this](std::size_t index) { return post_sum(index); },
      [this](std::size_t) { fault_point("sum.posted", index_of(transport_.rank())); });
}

Status OwnerExchange::post_sum(std::size_t index) {
  Slot& slot = slots_[index];
  const std::size_t shard = index / 2;
  const std::size_t chunk = table_.chunk_of(shard);
  const std::size_t own = index_of(transport_.rank());
  spi::Operation sum;
  sum.kind = spi::Operation::Kind::kWeightedSum;
  sum.dtype = table_.chunk(chunk).description.dtype;
  sum.element_count = table_.shard_bytes(shard) / size_of(sum.dtype);
  sum.destination = slot.result;
  if (ranks_ > spi::kMaxSources && slot.block >= 0) {
    sum.accumulator = reinterpret_cast<float*>(scratch_->data() +
                                               static_cast<std::size_t>(slot.block) * block_bytes_ +
                                               (ranks_ - 1) * shard_capacity_);
  }
  slot.total_samples = add_samples(index);
  if (slot.total_samples == 0) {
    sum.kind = spi::Operation::Kind::kZero;
    return stream_->post(sum);
  }
  const bool is_mean = table_.chunk(chunk).description.combine == spi::Combine::kMean;
  sum.scale = is_mean ? static_cast<float>(1.0 / static_cast<double>(slot.total_samples)) : 1.0F;
  sum.finishes = false;
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    const std::uint64_t samples = samples_of(index, rank);
    if (samples == 0) {
      continue;  // whoever has no samples adds nothing, not even a zero
    }
    if (sum.source_count == spi::kMaxSources) {
      STRETTO_TRY(stream_->post(sum));
      sum.begins = false;
      sum.source_count = 0;
    }
    sum.source[sum.source_count] = rank == own ? slot.contribution : scratch_of(index, rank).data();
    sum.weight[sum.source_count] = static_cast<float>(samples);
    ++sum.source_count;
  }
  sum.finishes = true;
  return stream_->post(sum);
}

void OwnerExchange::collect_sums() {
  sums_.collect(*stream_, [this](std::size_t index) { on_reduced(index); });
}

void OwnerExchange::free_block(std::size_t index) {
  Slot& slot = slots_[index];
  settle(index);
  if (slot.block >= 0) {
    free_blocks_.push_back(slot.block);
    slot.block = -1;
  }
}

void OwnerExchange::on_reduced(std::size_t index) {
  free_block(index);
  if (ranks_ > 1 && !table_.chunk(table_.chunk_of(index / 2)).one_hop) {
    send_results(index);
  }
  arrive_home(index);
}

void OwnerExchange::arrive_home(std::size_t index) {
  slots_[index].home = true;
  report(index, spi::ExchangeEvent::Kind::kResult);
  release_if_done(index);
}

void OwnerExchange::release_if_done(std::size_t index) {
  Slot& slot = slots_[index];
  if (slot.home && slot.sends_left == 0 && !slot.released) {
    slot.released = true;
    report(index, spi::ExchangeEvent::Kind::kReleased);
  }
}

void OwnerExchange::report(std::size_t index, spi::ExchangeEvent::Kind kind) {
  const Slot& slot = slots_[index];
  const std::size_t chunk = table_.chunk_of(index / 2);
  spi::ExchangeEvent event;
  event.kind = kind;
  event.step = slot.step;
  event.chunk = ChunkId{static_cast<std::uint32_t>(chunk)};
  event.first_shard = index / 2 - table_.chunk(chunk).first_shard;
  event.shard_count = 1;
  event.samples = slot.total_samples;
  event.last = slot.last;
  event.coded = slot.facts;
  events_.push(event);
}

Result<std::size_t> OwnerExchange::poll(std::span<spi::ExchangeEvent> events) {
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
  const auto steps = {&OwnerExchange::post_waiting_sums, &OwnerExchange::send_waiting};
  for (const auto step : steps) {
    if (error_.is_ok()) {
      error_ = (this->*step)();
    }
    collect_sums();
    collect_coded();
  }
  if (error_.is_ok()) {
    error_ = give_blocks();
  }
  if (error_.is_ok()) {
    error_ = send_waiting();
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

TimePoint OwnerExchange::next_due() const noexcept {
  if (!events_.empty() || sums_.has_waiting() || coder_.has_waiting()) {
    return TimePoint::min();
  }
  return transport_.next_due();
}

/// Adds the other ranks whose part of a shard has come no further than `state`.
void OwnerExchange::add_missing(std::size_t index,
                                Part::State state,
                                std::vector<Rank>& missing) const {
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    if (rank != index_of(transport_.rank()) && part(index, rank).state <= state) {
      missing.push_back(Rank{static_cast<std::uint32_t>(rank)});
    }
  }
}

std::vector<spi::PendingShard> OwnerExchange::pending() const {
  std::vector<spi::PendingShard> list;
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    const Slot& slot = slots_[index];
    if (!slot.submitted || slot.home) {
      continue;
    }
    const std::size_t shard = index / 2;
    const std::size_t chunk = table_.chunk_of(shard);
    spi::PendingShard entry{slot.step,
                            ChunkId{static_cast<std::uint32_t>(chunk)},
                            shard - table_.chunk(chunk).first_shard,
                            reduces(shard),
                            {}};
    if (!reduces(shard)) {
      entry.missing.push_back(table_.owner(shard));
    } else {
      add_missing(index, Part::State::kNone, entry.missing);
      if (entry.missing.empty()) {  // all have announced their parts, but some are on their way
        add_missing(index, Part::State::kAccepted, entry.missing);
      }
    }
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace stretto::exchange

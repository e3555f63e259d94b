// SPDX-License-Identifier: Apache-2.0
#include "exchange/shared/shared.hpp"

#include "exchange/shared/factory.hpp"
#include "exchange/watch_all.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

namespace stretto::exchange {
namespace {

/// Chunks up to this size stay whole: one owner, two letters per rank.
constexpr std::size_t kWholeBytes = std::size_t{16} << 10;

Status other_plan(std::size_t rank) {
  return {StatusCode::kCorruptWire,
          "rank " + std::to_string(rank) + " handed over memory for another plan"};
}

}  // namespace

Result<std::unique_ptr<spi::Exchange>> make_shared_exchange(spi::ControlPlane& control,
                                                            spi::Device& device,
                                                            const SharedOptions& options) {
  STRETTO_TRY_ASSIGN(auto host,
                     Host::meet(control, options.local_size, Deadline::after(options.timeout)));
  if (!device.host_accessible()) {
    return fail(StatusCode::kUnsupported,
                "the shared exchange needs gradients in the host's memory; choose owner");
  }
  STRETTO_TRY_ASSIGN(auto stream, device.make_stream());
  FileDescriptor both;
  if (stream->descriptor() >= 0) {
    STRETTO_TRY_ASSIGN(both, watch_all(std::array{host->descriptor(), stream->descriptor()}));
  }
  return std::make_unique<SharedExchange>(
      std::move(host), std::move(stream), std::move(both), device, options.timeout);
}

SharedExchange::SharedExchange(std::unique_ptr<Host> host,
                               std::unique_ptr<spi::Stream> stream,
                               FileDescriptor both,
                               spi::Device& device,
                               std::chrono::nanoseconds timeout)
    : host_(std::move(host)),
      both_(std::move(both)),
      device_(device),
      timeout_(timeout),
      ranks_(host_->size()),
      boxes_(ranks_),
      read_(ranks_, 0),
      peer_staging_(ranks_),
      peer_arenas_(ranks_),
      to_wake_(ranks_, false),
      stream_(std::move(stream)) {
  traits_.name = "shared";
  traits_.partial_chunks = true;
  traits_.any_order = true;
}

Result<std::unique_ptr<spi::Buffer>> SharedExchange::allocate_arena(spi::Device& device,
                                                                    std::size_t bytes) {
  if (&device != &device_) {
    return device.allocate(bytes);
  }
  return arenas_.make(bytes);
}

Status SharedExchange::configure(std::span<const spi::ChunkDescription> chunks,
                                 std::uint64_t /*plan_hash*/,
                                 std::uint32_t /*epoch*/) {
  if (!std::all_of(slots_.begin(), slots_.end(), [this](const Slot& slot) { return done(slot); })) {
    return {StatusCode::kInvalidArgument, "the plan cannot change while shards are in flight"};
  }
  table_ = ChunkTable::make(chunks, ranks_, kWholeBytes);
  staging_offset_.clear();
  staging_bytes_ = 0;
  for (std::size_t shard = 0; shard < table_.shard_count(); ++shard) {
    staging_offset_.push_back(staging_bytes_);
    staging_bytes_ += (table_.shard_bytes(shard) + 63) / 64 * 64;
  }
  STRETTO_TRY(hand_over());
  return allocate_slots();
}

Status SharedExchange::allocate_slots() {
  const std::size_t slots = 2 * table_.shard_count();
  slots_.assign(slots, Slot{});
  parts_.assign(slots * ranks_, Part{});
  sum_done_.clear();
  sum_done_.resize(slots);
  for (std::size_t index = 0; index < slots; ++index) {
    if (owner_of(index) == own()) {
      STRETTO_TRY_ASSIGN(sum_done_[index], device_.make_event());
    }
  }
  if (ranks_ > spi::kMaxSources) {
    STRETTO_TRY_ASSIGN(accumulator_, device_.allocate(kPieceBytes / 2 * sizeof(float)));
  }
  to_sum_ = FixedRing<Sum>(slots + 1);
  summing_ = FixedRing<std::uint32_t>(slots + 1);
  events_ = FixedRing<spi::ExchangeEvent>(2 * slots + 1);
  return {};
}

/// Makes the letter box and the staging area of this plan, and maps everybody's, with all arenas
/// that are new.
Status SharedExchange::hand_over() {
  const Deadline deadline = Deadline::after(timeout_);
  auto box =
      Mapping::create(PostBox::bytes_for(ranks_, table_.shard_count()), Mapping::Touch::kNow);
  auto staging = Mapping::create(4 * staging_bytes_, Mapping::Touch::kLater);
  const Status ready = !box ? box.error() : !staging ? staging.error() : Status();
  std::vector<const Mapping*> mine;
  const Arenas::News news = arenas_.news();
  if (ready.is_ok()) {
    mine = news.to_hand_over();
    mine.insert(mine.begin(), &*box);
  }
  STRETTO_TRY_ASSIGN(auto got,
                     host_->share(ready, mine, Mapping::Touch::kNow, deadline, news.gone));
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    if (rank != own() && (got[rank].memory.empty() || got[rank].memory[0].size() != box->size())) {
      return other_plan(rank);
    }
  }
  arenas_.told(news);
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    read_[rank] = 0;
    if (rank == own()) {
      boxes_[rank] = PostBox(std::move(*box), table_.shard_count());
      continue;
    }
    std::vector<Mapping>& memory = got[rank].memory;
    boxes_[rank] = PostBox(std::move(memory[0]), table_.shard_count());
    memory.erase(memory.begin());
    peer_arenas_[rank].take(std::move(memory), got[rank].gone);
  }
  const Mapping* const pages = &*staging;
  STRETTO_TRY_ASSIGN(auto areas, host_->share({}, {&pages, 1}, Mapping::Touch::kLater, deadline));
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    if (rank == own()) {
      continue;
    }
    if (areas[rank].memory.size() != 1 || areas[rank].memory[0].size() != staging->size()) {
      return other_plan(rank);
    }
    peer_staging_[rank] = std::move(areas[rank].memory[0]);
  }
  staging_ = std::move(*staging);
  return {};
}

Status SharedExchange::submit(const spi::ChunkSubmission& submission) {
  STRETTO_TRY(error_);
  const auto submitted = [this](std::size_t shard, std::uint64_t step) {
    const Slot& slot = slots_[slot_index(shard, step)];
    return slot.submitted && slot.step == step;
  };
  STRETTO_TRY_ASSIGN(const std::size_t count, table_.check(submission, step_, submitted));
  step_ = submission.step;
  // The shards of others first: they can begin while this rank goes on.
  const Rank self{static_cast<std::uint32_t>(own())};
  STRETTO_TRY(table_.in_rotation(submission, count, self, [&](std::size_t shard) {
    submit_shard(submission, shard);
    return Status();
  }));
  wake_receivers();
  return {};
}

void SharedExchange::submit_shard(const spi::ChunkSubmission& submission, std::size_t shard) {
  const std::size_t chunk = index_of(submission.chunk);
  const std::size_t number = table_.chunk(chunk).first_shard + shard;
  const std::size_t index = slot_index(number, submission.step);
  Slot& slot = slots_[index];
  if (slot.step != submission.step) {
    open(index, submission.step);
  }
  const std::size_t offset =
      table_.range(chunk, shard).first * size_of(table_.chunk(chunk).description.dtype);
  const std::size_t bytes = table_.shard_bytes(number);
  const std::byte* contribution =
      submission.samples == 0 ? nullptr : submission.contribution + offset;
  slot.result = submission.result + offset;
  slot.submitted = true;
  if (owner_of(index) == own()) {
    add_part(index, own(), {true, submission.samples, contribution, slot.result});
    return;
  }
  Letter letter;
  letter.kind = Letter::Kind::kPart;
  letter.step = submission.step;
  letter.shard = static_cast<std::uint32_t>(number);
  letter.samples = submission.samples;
  if (contribution != nullptr) {
    Arenas::Place place = arenas_.place_of(contribution, bytes);
    if (place.data == nullptr) {
      place = staging(index, false);
      std::memcpy(place.data, contribution, bytes);
    }
    letter.contribution_file = place.file;
    letter.contribution_offset = place.offset;
  }
  Arenas::Place place = arenas_.place_of(slot.result, bytes);
  if (place.data == nullptr) {
    place = staging(index, true);
    slot.staged_result = place.data;
  }
  letter.result_file = place.file;
  letter.result_offset = place.offset;
  send(owner_of(index), letter);
}

void SharedExchange::open(std::size_t index, std::uint64_t step) {
  slots_[index] = Slot{};
  slots_[index].step = step;
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    part(index, rank) = Part{};
  }
}

Arenas::Place SharedExchange::staging(std::size_t index, bool for_result) const noexcept {
  const std::size_t area = 2 * (index & 1U) + (for_result ? 1 : 0);
  const std::size_t offset = area * staging_bytes_ + staging_offset_[index / 2];
  return {staging_.data() + offset, 0, offset};
}

TimePoint SharedExchange::next_due() const noexcept {
  if (!events_.empty() || !to_sum_.empty() || !error_.is_ok()) {
    return TimePoint::min();
  }
  host_->arm();
  for (std::size_t sender = 0; sender < ranks_; ++sender) {
    if (sender != own() && boxes_[sender].memory().data() != nullptr &&
        boxes_[sender].written(own()) != read_[sender]) {
      return TimePoint::min();
    }
  }
  return TimePoint::max();
}

std::vector<spi::PendingShard> SharedExchange::pending() const {
  std::vector<spi::PendingShard> list;
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    const Slot& slot = slots_[index];
    if (done(slot)) {
      continue;
    }
    const std::size_t chunk = table_.chunk_of(index / 2);
    spi::PendingShard entry{slot.step,
                            ChunkId{static_cast<std::uint32_t>(chunk)},
                            index / 2 - table_.chunk(chunk).first_shard,
                            owner_of(index) == own(),
                            {}};
    if (!entry.reduced_here) {
      entry.missing.push_back(table_.owner(index / 2));
    } else {
      for (std::size_t rank = 0; rank < ranks_; ++rank) {
        if (!part(index, rank).arrived) {
          entry.missing.push_back(Rank{static_cast<std::uint32_t>(rank)});
        }
      }
    }
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace stretto::exchange

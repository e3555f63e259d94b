// SPDX-License-Identifier: Apache-2.0
// The half of SharedExchange that reads letters, sums, and tells the others.
#include "base/fault_point.hpp"
#include "exchange/shared/shared.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

namespace stretto::exchange {
namespace {

Status wrong_letter(std::size_t sender, const Letter& letter, const std::string& what) {
  return {StatusCode::kCorruptWire,
          "rank " + std::to_string(sender) + " wrote of shard " + std::to_string(letter.shard) +
              " in step " + std::to_string(letter.step) + ", " + what +
              "; do all ranks run the same program with the same options?"};
}

}  // namespace

void SharedExchange::send(std::size_t receiver, const Letter& letter) {
  boxes_[own()].put(receiver, letter);
  to_wake_[receiver] = true;
}

void SharedExchange::wake_receivers() {
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    if (to_wake_[rank]) {
      to_wake_[rank] = false;
      host_->wake(rank);
    }
  }
}

Result<std::size_t> SharedExchange::poll(std::span<spi::ExchangeEvent> events) {
  STRETTO_TRY(error_);
  host_->disarm();
  error_ = read_letters();
  if (error_.is_ok()) {
    error_ = post_waiting_sums();
  }
  collect_sums();
  wake_receivers();
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

Status SharedExchange::read_letters() {
  if (slots_.empty()) {
    return {};
  }
  for (std::size_t sender = 0; sender < ranks_; ++sender) {
    if (sender == own()) {
      continue;
    }
    const PostBox& box = boxes_[sender];
    const std::uint64_t written = box.written(own());
    if (written - read_[sender] > box.capacity()) {
      return {StatusCode::kCorruptWire,
              "rank " + std::to_string(sender) + " wrote more letters than its box has room for"};
    }
    for (; read_[sender] != written; ++read_[sender]) {
      STRETTO_TRY(take(sender, box.letter(own(), read_[sender])));
    }
  }
  return {};
}

Status SharedExchange::take(std::size_t sender, const Letter& letter) {
  if (letter.shard >= table_.shard_count()) {
    return wrong_letter(sender, letter, "which is not in the plan");
  }
  switch (letter.kind) {
    case Letter::Kind::kPart:
      return take_part(sender, letter);
    case Letter::Kind::kResult:
      return take_result(sender, letter);
  }
  return wrong_letter(sender, letter, "in words of another version");
}

Status SharedExchange::take_part(std::size_t sender, const Letter& letter) {
  const std::size_t index = slot_index(letter.shard, letter.step);
  Slot& slot = slots_[index];
  if (owner_of(index) != own()) {
    return wrong_letter(sender, letter, "meant for another rank");
  }
  if (slot.step != letter.step) {
    if (letter.step < step_ || letter.step > step_ + 1 || !done(slot)) {
      return wrong_letter(sender, letter, "while this rank is at step " + std::to_string(step_));
    }
    open(index, letter.step);
  }
  if (part(index, sender).arrived) {
    return wrong_letter(sender, letter, "twice");
  }
  const std::size_t bytes = table_.shard_bytes(letter.shard);
  Part came{true, letter.samples, nullptr, nullptr};
  came.result = mapped(sender, letter.result_file, letter.result_offset, bytes);
  came.contribution = mapped(sender, letter.contribution_file, letter.contribution_offset, bytes);
  if (came.result == nullptr || came.contribution == nullptr) {
    return wrong_letter(sender, letter, "of memory that it has not handed over");
  }
  fault_point("part.received", own());
  add_part(index, sender, came);
  return {};
}

std::byte* SharedExchange::mapped(std::size_t rank,
                                  std::uint32_t file,
                                  std::uint64_t offset,
                                  std::size_t bytes) const noexcept {
  return file == 0 ? peer_staging_[rank].at(offset, bytes)
                   : peer_arenas_[rank].at(file, offset, bytes);
}

void SharedExchange::add_part(std::size_t index, std::size_t rank, const Part& came) {
  Slot& slot = slots_[index];
  part(index, rank) = came;
  slot.last = Rank{static_cast<std::uint32_t>(rank)};
  if (++slot.arrived == ranks_) {
    slot.total_samples = 0;
    for (std::size_t r = 0; r < ranks_; ++r) {
      slot.total_samples += part(index, r).samples;
    }
    to_sum_.push({static_cast<std::uint32_t>(index), 0, 0, 0});
  }
}

Status SharedExchange::post_waiting_sums() {
  while (!to_sum_.empty()) {
    Sum& sum = to_sum_.front();
    fault_point("sum.begin", own());
    if (Status posted = post_sum(sum); !posted.is_ok()) {
      return posted.code() == StatusCode::kWouldBlock ? Status() : posted;
    }
    summing_.push(sum.slot);
    to_sum_.pop();
    fault_point("sum.posted", own());
  }
  return {};
}

/// Posts what is left of a sum: each piece is added once and then copied to all other ranks.
Status SharedExchange::post_sum(Sum& sum) {
  const std::size_t shard = sum.slot / 2;
  const std::size_t width = size_of(table_.chunk(table_.chunk_of(shard)).description.dtype);
  const std::size_t count = table_.shard_bytes(shard) / width;
  while (sum.element < count) {
    const std::size_t elements = std::min(kPieceBytes / width, count - sum.element);
    STRETTO_TRY(post_piece(sum, elements));
    sum.element += elements;
    sum.source = 0;
    sum.target = 0;
  }
  return stream_->record(*sum_done_[sum.slot]);
}

Status SharedExchange::post_piece(Sum& sum, std::size_t elements) {
  const Slot& slot = slots_[sum.slot];
  spi::Operation add;
  add.kind = spi::Operation::Kind::kWeightedSum;
  const spi::ChunkDescription& chunk = table_.chunk(table_.chunk_of(sum.slot / 2)).description;
  add.dtype = chunk.dtype;
  add.element_count = elements;
  const std::size_t offset = sum.element * size_of(add.dtype);
  add.destination = slot.result + offset;
  if (accumulator_ != nullptr) {
    add.accumulator = reinterpret_cast<float*>(accumulator_->data());
  }
  if (chunk.combine == spi::Combine::kMean) {
    add.scale = static_cast<float>(1.0 / static_cast<double>(slot.total_samples));
  }
  const auto adds = [&](std::size_t rank) { return part(sum.slot, rank).samples > 0; };
  while (sum.source < ranks_) {
    add.begins = true;
    for (std::size_t rank = 0; rank < sum.source; ++rank) {
      add.begins = add.begins && !adds(rank);
    }
    add.source_count = 0;
    std::size_t next = sum.source;
    for (; next < ranks_; ++next) {  // whoever has no samples adds nothing, not even a zero
      if (!adds(next)) {
        continue;
      }
      if (add.source_count == spi::kMaxSources) {
        break;
      }
      add.source[add.source_count] = part(sum.slot, next).contribution + offset;
      add.weight[add.source_count] = static_cast<float>(part(sum.slot, next).samples);
      ++add.source_count;
    }
    add.finishes = next == ranks_;
    if (slot.total_samples == 0) {
      add.kind = spi::Operation::Kind::kZero;
    }
    STRETTO_TRY(stream_->post(add));
    sum.source = next;
  }
  spi::Operation copy;
  copy.kind = spi::Operation::Kind::kCopy;
  copy.dtype = add.dtype;
  copy.element_count = elements;
  copy.source_count = 1;
  copy.source[0] = add.destination;
  for (; sum.target < ranks_; ++sum.target) {
    if (sum.target != own()) {
      copy.destination = part(sum.slot, sum.target).result + offset;
      STRETTO_TRY(stream_->post(copy));
    }
  }
  return {};
}

void SharedExchange::collect_sums() {
  // Also when nothing is under way: a sign may come behind the event that it is for.
  stream_->drain();
  while (!summing_.empty() && sum_done_[summing_.front()]->done()) {
    const std::uint32_t index = summing_.front();
    summing_.pop();
    send_results(index);
    arrive_home(index);
  }
}

void SharedExchange::send_results(std::size_t index) {
  const Slot& slot = slots_[index];
  Letter letter;
  letter.kind = Letter::Kind::kResult;
  letter.step = slot.step;
  letter.shard = static_cast<std::uint32_t>(index / 2);
  letter.samples = slot.total_samples;
  letter.last = slot.last ? static_cast<std::uint32_t>(index_of(*slot.last)) + 1 : 0;
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    if (rank != own()) {
      send(rank, letter);
      fault_point("result.sent", own());
    }
  }
}

Status SharedExchange::take_result(std::size_t sender, const Letter& letter) {
  const std::size_t index = slot_index(letter.shard, letter.step);
  Slot& slot = slots_[index];
  if (owner_of(index) != sender || slot.step != letter.step || done(slot)) {
    return wrong_letter(sender, letter, "a result that nobody waits for");
  }
  slot.total_samples = letter.samples;
  if (letter.last > 0 && letter.last <= ranks_) {
    slot.last = Rank{letter.last - 1};
  }
  if (slot.staged_result != nullptr) {
    std::memcpy(slot.result, slot.staged_result, table_.shard_bytes(letter.shard));
  }
  arrive_home(index);
  return {};
}

void SharedExchange::arrive_home(std::size_t index) {
  slots_[index].home = true;
  report(index, spi::ExchangeEvent::Kind::kResult);
  report(index, spi::ExchangeEvent::Kind::kReleased);
}

void SharedExchange::report(std::size_t index, spi::ExchangeEvent::Kind kind) {
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
  events_.push(event);
}

}  // namespace stretto::exchange

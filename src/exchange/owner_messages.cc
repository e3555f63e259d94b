// SPDX-License-Identifier: Apache-2.0
// The half of OwnerExchange that speaks with the transport: what is sent, what comes, and where the
// parts of other ranks wait.
#include "base/fault_point.hpp"
#include "exchange/owner.hpp"

#include <algorithm>
#include <string>

namespace stretto::exchange {
namespace {

std::string name_of(Rank rank) {
  return "rank " + std::to_string(index_of(rank));
}

}  // namespace

std::span<const std::byte> OwnerExchange::payload_of(const Outgoing& message) const {
  const Slot& slot = slots_[message.slot];
  const bool is_result = message.stage == spi::Stage::kResult;
  if (is_coded(message.slot)) {
    if ((is_result ? slot.total_samples : slot.samples) == 0) {
      return {};
    }
    return is_result ? coder_.mean_wire(message.slot, message.round)
                     : coder_.own_wire(message.slot, message.round);
  }
  const std::size_t bytes = table_.shard_bytes(message.slot / 2);
  return is_result ? std::span<const std::byte>(slot.result, bytes)
                   : std::span(slot.contribution, slot.samples == 0 ? 0 : bytes);
}

spi::MessageHeader OwnerExchange::header_of(const Outgoing& message) const {
  const Slot& slot = slots_[message.slot];
  const std::size_t shard = message.slot / 2;
  const std::size_t chunk = table_.chunk_of(shard);
  const spi::ChunkDescription& description = table_.chunk(chunk).description;
  const bool is_result = message.stage == spi::Stage::kResult;
  spi::MessageHeader header;
  header.step = slot.step;
  header.plan_hash = plan_hash_;
  header.samples = is_result ? slot.total_samples : slot.samples;
  header.element_count = table_.shard_bytes(shard) / size_of(description.dtype);
  header.payload_bytes = payload_of(message).size();
  header.epoch = epoch_;
  header.bucket = static_cast<std::uint32_t>(index_of(description.bucket));
  header.chunk = static_cast<std::uint32_t>(chunk);
  header.shard = static_cast<std::uint32_t>(shard - table_.chunk(chunk).first_shard);
  // A result ends a chunk and a part only begins one, so results go first among equals.
  header.priority = 2 * slot.priority + (is_result ? 0 : 1);
  header.stage = message.stage;
  header.dtype = description.dtype;
  header.codec = description.codec == nullptr ? 0 : description.codec->traits().id;
  header.flags = static_cast<std::uint8_t>(message.round);
  return header;
}

void OwnerExchange::send_parts(std::size_t index) {
  const std::size_t shard = index / 2;
  const auto own = static_cast<std::uint32_t>(index_of(transport_.rank()));
  const auto ranks = static_cast<std::uint32_t>(ranks_);
  if (table_.chunk(table_.chunk_of(shard)).one_hop) {
    for (std::uint32_t i = 1; i < ranks; ++i) {
      send(index, (own + i) % ranks, spi::Stage::kOneHop);
    }
  } else if (table_.owner(shard) != transport_.rank()) {
    send(index,
         static_cast<std::uint32_t>(index_of(table_.owner(shard))),
         spi::Stage::kContribution);
  }
}

void OwnerExchange::send_results(std::size_t index) {
  const auto own = static_cast<std::uint32_t>(index_of(transport_.rank()));
  const auto ranks = static_cast<std::uint32_t>(ranks_);
  for (std::uint32_t i = 1; i < ranks; ++i) {
    send(index, (own + i) % ranks, spi::Stage::kResult);
  }
}

/// No shard has more than one message of a round to the same rank.
void OwnerExchange::send(std::size_t index, std::uint32_t peer, spi::Stage stage) {
  outgoing_.push({static_cast<std::uint32_t>(index), peer, stage, round_of(index)});
  ++slots_[index].sends_left;
  ++part(index, peer).sending;
}

Status OwnerExchange::send_waiting() {
  while (!outgoing_.empty()) {
    const Outgoing& next = outgoing_.front();
    spi::MessageHeader header = header_of(next);
    if (next.stage == spi::Stage::kResult || has_room_[next.peer]) {
      header.flags |= spi::kExpected;
    }
    const Status sent = transport_.announce(Rank{next.peer}, header, payload_of(next), next.slot);
    if (sent.code() == StatusCode::kWouldBlock) {
      return {};
    }
    STRETTO_TRY(sent);
    if (next.stage == spi::Stage::kResult) {
      fault_point("result.sent", index_of(transport_.rank()));
    }
    outgoing_.pop();
  }
  return {};
}

Status OwnerExchange::take(const spi::TransportEvent& event) {
  switch (event.kind) {
    case spi::TransportEvent::Kind::kAnnounced:
      return on_announced(event);
    case spi::TransportEvent::Kind::kReceived:
      return on_received(event);
    case spi::TransportEvent::Kind::kSent:
      --slots_[event.token].sends_left;
      --part(event.token, index_of(event.peer)).sending;
      release_if_done(event.token);
      return {};
    case spi::TransportEvent::Kind::kPeerLost:
      return on_lost(event.peer);
  }
  return {};
}

/// A rank that owes nothing and to which nothing is owed may leave, though others are not done.
Status OwnerExchange::on_lost(Rank peer) {
  lost_[index_of(peer)] = true;
  any_lost_ = true;
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    STRETTO_TRY(check_lost(index));
  }
  return {};
}

bool OwnerExchange::waits_for(std::size_t index, std::size_t peer) const noexcept {
  const Slot& slot = slots_[index];
  if (done(slot)) {
    return false;
  }
  if (part(index, peer).sending > 0) {
    return true;
  }
  const std::size_t shard = index / 2;
  return !slot.home && (reduces(shard) ? part(index, peer).state != Part::State::kArrived
                                       : index_of(table_.owner(shard)) == peer);
}

/// An error if a slot waits for a rank that is gone.
Status OwnerExchange::check_lost(std::size_t index) const {
  const std::size_t own = index_of(transport_.rank());
  for (std::size_t peer = 0; any_lost_ && peer < ranks_; ++peer) {
    if (peer != own && lost_[peer] && waits_for(index, peer)) {
      return {StatusCode::kPeerLost,
              name_of(Rank{static_cast<std::uint32_t>(peer)}) + " closed its data connection"};
    }
  }
  return {};
}

/// A header that does not fit the plan means another program, another plan or a broken peer:
/// nothing of it is used.
Status OwnerExchange::check_header(const spi::TransportEvent& event, std::size_t& shard) const {
  const spi::MessageHeader& header = event.header;
  const auto wrong = [&](const std::string& what) {
    return Status(StatusCode::kCorruptWire,
                  name_of(event.peer) + " sent a message of step " + std::to_string(header.step) +
                      ", " + what + "; do all ranks run the same program with the same options?");
  };
  if (header.epoch != epoch_ || header.plan_hash != plan_hash_) {
    return wrong("made for another plan or membership");
  }
  if (header.chunk >= table_.chunk_count() ||
      header.shard >= table_.chunk(header.chunk).shard_count) {
    return wrong("for a chunk that is not in the plan");
  }
  const ChunkTable::Chunk& chunk = table_.chunk(header.chunk);
  shard = chunk.first_shard + header.shard;
  const spi::Codec* codec = chunk.description.codec;
  if (header.codec != (codec == nullptr ? 0 : codec->traits().id)) {
    return wrong("in another codec than the plan");
  }
  if (header.dtype != chunk.description.dtype ||
      header.element_count * size_of(header.dtype) != table_.shard_bytes(shard) ||
      !has_right_length(header, shard)) {
    return wrong("with another type or length than the plan");
  }
  const bool from_owner = header.stage == spi::Stage::kResult;
  if (header.stage != spi::Stage::kContribution && header.stage != spi::Stage::kOneHop &&
      !from_owner) {
    return wrong("of an unknown stage");
  }
  if (from_owner != !reduces(shard) || (from_owner && table_.owner(shard) != event.peer) ||
      (!from_owner && chunk.one_hop != (header.stage == spi::Stage::kOneHop))) {
    return wrong("meant for another rank");
  }
  return {};
}

bool OwnerExchange::has_right_length(const spi::MessageHeader& header,
                                     std::size_t shard) const noexcept {
  const spi::Codec* codec = codec_of(shard);
  const bool is_result = header.stage == spi::Stage::kResult;
  if (header.samples == 0 && (!is_result || codec != nullptr)) {
    return header.payload_bytes == 0;
  }
  if (codec == nullptr) {
    return header.payload_bytes == table_.shard_bytes(shard);
  }
  const unsigned round = header.flags & ~unsigned{spi::kExpected};
  if (round >= codec->traits().rounds) {
    return false;
  }
  const std::size_t most = most_wire_bytes(table_.chunk(table_.chunk_of(shard)).description, round);
  return codec->traits().fixed_length ? header.payload_bytes == most : header.payload_bytes <= most;
}

Status OwnerExchange::on_announced(const spi::TransportEvent& event) {
  std::size_t shard = 0;
  STRETTO_TRY(check_header(event, shard));
  return event.header.stage == spi::Stage::kResult ? on_result_announced(event, shard)
                                                   : on_part_announced(event, shard);
}

Status OwnerExchange::on_part_announced(const spi::TransportEvent& event, std::size_t shard) {
  const std::uint64_t step = event.header.step;
  const std::size_t index = slot_index(shard, step);
  Slot& slot = slots_[index];
  if (slot.step != step) {
    if (step < step_ || step > step_ + 1 || !done(slot)) {
      return {StatusCode::kCorruptWire,
              name_of(event.peer) + " is at step " + std::to_string(step) + ", this rank at step " +
                  std::to_string(step_) + "; that cannot be"};
    }
    open(index, step);
  }
  slot.priority = std::max(slot.priority, event.header.priority / 2);
  Part& from = part(index, index_of(event.peer));
  const unsigned round = slot.submitted ? round_of(index) : 0;
  if (from.state != Part::State::kNone ||
      (event.header.flags & ~unsigned{spi::kExpected}) != round) {
    return {StatusCode::kCorruptWire,
            name_of(event.peer) + " sent its part of chunk " + std::to_string(event.header.chunk) +
                " twice, or out of turn, in step " + std::to_string(step)};
  }
  from.state = Part::State::kAnnounced;
  from.message = event.message;
  from.samples = event.header.samples;
  from.payload_bytes = event.header.payload_bytes;
  if (from.payload_bytes == 0) {
    from.state = Part::State::kAccepted;
    return transport_.accept(event.peer, event.message, {});
  }
  if (slot.block >= 0) {
    return accept_part(index, index_of(event.peer));
  }
  if (!slot.wants_block) {
    slot.wants_block = true;
    want_block_.push_back(static_cast<std::uint32_t>(index));
    std::push_heap(want_block_.begin(),
                   want_block_.end(),
                   [this](std::uint32_t a, std::uint32_t b) { return later(a, b); });
  }
  return give_blocks();
}

bool OwnerExchange::later(std::uint32_t a, std::uint32_t b) const noexcept {
  return std::pair(slots_[a].step, slots_[a].priority) >
         std::pair(slots_[b].step, slots_[b].priority);
}

void OwnerExchange::settle(std::size_t index) {
  Slot& slot = slots_[index];
  if (!slot.settled) {
    slot.settled = true;
    ++settled_[slot.step & 1U];
  }
}

Status OwnerExchange::give_blocks() {
  while (!want_block_.empty() && !free_blocks_.empty()) {
    const std::uint32_t index = want_block_.front();
    Slot& slot = slots_[index];
    if (slot.step > step_ && step_ > 0 && settled_[step_ & 1U] < owned_ &&
        !has_room_[index_of(transport_.rank())]) {
      return {};  // the step that is under way comes first
    }
    std::pop_heap(want_block_.begin(), want_block_.end(), [this](std::uint32_t a, std::uint32_t b) {
      return later(a, b);
    });
    want_block_.pop_back();
    slot.block = free_blocks_.back();
    free_blocks_.pop_back();
    slot.wants_block = false;
    settle(index);
    STRETTO_TRY(give_block(index));
  }
  return {};
}

Status OwnerExchange::give_block(std::size_t index) {
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    if (part(index, rank).state == Part::State::kAnnounced) {
      STRETTO_TRY(accept_part(index, rank));
    }
  }
  return {};
}

std::span<std::byte> OwnerExchange::scratch_of(std::size_t index, std::size_t rank) const {
  const std::size_t own = index_of(transport_.rank());
  const std::size_t place = rank < own ? rank : rank - 1;  // the own part needs none
  return {scratch_->data() + static_cast<std::size_t>(slots_[index].block) * block_bytes_ +
              place * shard_capacity_,
          part(index, rank).payload_bytes};
}

Status OwnerExchange::accept_part(std::size_t index, std::size_t rank) {
  Part& from = part(index, rank);
  from.state = Part::State::kAccepted;
  return transport_.accept(
      Rank{static_cast<std::uint32_t>(rank)}, from.message, scratch_of(index, rank));
}

Status OwnerExchange::on_result_announced(const spi::TransportEvent& event, std::size_t shard) {
  Slot& slot = slots_[slot_index(shard, event.header.step)];
  const unsigned round = event.header.flags & ~unsigned{spi::kExpected};
  const std::size_t index = slot_index(shard, event.header.step);
  if (slot.step != event.header.step || !slot.submitted || slot.home || slot.receiving ||
      round != round_of(index) || (is_coded(index) && !slot.encoded)) {
    return {StatusCode::kCorruptWire,
            name_of(event.peer) + " sent a result of step " + std::to_string(event.header.step) +
                " that nobody waits for"};
  }
  slot.receiving = true;
  const std::size_t bytes = event.header.payload_bytes;
  return transport_.accept(
      event.peer,
      event.message,
      is_coded(index) ? coder_.mean_room(index, bytes) : std::span(slot.result, bytes));
}

Status OwnerExchange::on_received(const spi::TransportEvent& event) {
  const spi::MessageHeader& header = event.header;
  const std::size_t shard = table_.chunk(header.chunk).first_shard + header.shard;
  const std::size_t index = slot_index(shard, header.step);
  Slot& slot = slots_[index];
  if (header.stage == spi::Stage::kResult) {
    slot.total_samples = header.samples;
    if (is_coded(index)) {
      decode_mean(index);
    } else {
      arrive_home(index);
    }
    return {};
  }
  fault_point("part.received", index_of(transport_.rank()));
  part(index, index_of(event.peer)).state = Part::State::kArrived;
  slot.last = slot.submitted ? event.peer : transport_.rank();
  ++slot.arrived;
  reduce_if_complete(index);
  return {};
}

}  // namespace stretto::exchange

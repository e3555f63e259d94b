// SPDX-License-Identifier: Apache-2.0
// The half of RingExchange that speaks with the transport.
#include "base/fault_point.hpp"
#include "exchange/ring.hpp"

#include <algorithm>
#include <string>

namespace stretto::exchange {
namespace {

std::string name_of(Rank rank) {
  return "rank " + std::to_string(index_of(rank));
}

}  // namespace

spi::MessageHeader RingExchange::header_of(std::size_t index, spi::Stage stage) const {
  const Slot& slot = slots_[index];
  const std::size_t shard = index / 2;
  const std::size_t chunk = table_.chunk_of(shard);
  const bool is_result = stage == spi::Stage::kResult;
  spi::MessageHeader header;
  header.step = slot.step;
  header.plan_hash = plan_hash_;
  header.samples = slot.samples_so_far;
  header.element_count = elements(shard);
  header.payload_bytes = payload_bytes(shard, stage, header.samples);
  header.epoch = epoch_;
  header.bucket = static_cast<std::uint32_t>(index_of(table_.chunk(chunk).description.bucket));
  header.chunk = static_cast<std::uint32_t>(chunk);
  header.shard = static_cast<std::uint32_t>(shard - table_.chunk(chunk).first_shard);
  // A result ends a chunk and a part only begins one, so results go first among equals.
  header.priority = 2 * slot.priority + (is_result ? 0 : 1);
  header.stage = stage;
  header.flags = is_result ? spi::kExpected : std::uint8_t{0};
  header.dtype = travels_as(shard, stage);
  return header;
}

DType RingExchange::travels_as(std::size_t shard, spi::Stage stage) const noexcept {
  return stage == spi::Stage::kPartialSum ? DType::kFloat32
                                          : table_.chunk(table_.chunk_of(shard)).description.dtype;
}

/// A sum to which nobody has added yet is announced, but has no payload.
std::size_t RingExchange::payload_bytes(std::size_t shard,
                                        spi::Stage stage,
                                        std::uint64_t samples) const noexcept {
  const bool empty = stage == spi::Stage::kPartialSum && samples == 0;
  return empty ? 0 : elements(shard) * size_of(travels_as(shard, stage));
}

void RingExchange::hand_on(std::size_t index, spi::Stage stage) {
  outgoing_.push({static_cast<std::uint32_t>(index), stage});
  ++slots_[index].sends_left;
}

Status RingExchange::send_waiting() {
  while (!outgoing_.empty()) {
    const Outgoing& out = outgoing_.front();
    const Slot& slot = slots_[out.slot];
    const bool is_result = out.stage == spi::Stage::kResult;
    const spi::MessageHeader header = header_of(out.slot, out.stage);
    const std::byte* payload = is_result                  ? slot.result
                               : header.payload_bytes > 0 ? buffer_of(out.slot)
                                                          : nullptr;
    const std::uint64_t token = 2 * std::uint64_t{out.slot} + (is_result ? 1 : 0);
    const Status sent = transport_.announce(next(), header, {payload, header.payload_bytes}, token);
    if (sent.code() == StatusCode::kWouldBlock) {
      return {};
    }
    STRETTO_TRY(sent);
    if (is_result) {
      fault_point("result.sent", index_of(transport_.rank()));
    }
    outgoing_.pop();
  }
  return {};
}

Status RingExchange::take(const spi::TransportEvent& event) {
  switch (event.kind) {
    case spi::TransportEvent::Kind::kAnnounced:
      return on_announced(event);
    case spi::TransportEvent::Kind::kReceived:
      return on_received(event);
    case spi::TransportEvent::Kind::kSent:
      on_sent(event.token);
      return {};
    case spi::TransportEvent::Kind::kPeerLost:
      return on_lost(event.peer);
  }
  return {};
}

void RingExchange::on_sent(std::uint64_t token) {
  const auto index = static_cast<std::size_t>(token / 2);
  --slots_[index].sends_left;
  if (token % 2 == 0) {
    slots_[index].handed_on = true;
    free_buffer(index);
  }
  release_if_done(index);
}

/// A rank that owes nothing and to which nothing is owed may leave, though others are not done.
Status RingExchange::on_lost(Rank peer) {
  lost_previous_ = lost_previous_ || peer == previous();
  lost_next_ = lost_next_ || peer == next();
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    STRETTO_TRY(check_lost(index));
  }
  return {};
}

/// An error if a slot waits for a neighbour that is gone.
Status RingExchange::check_lost(std::size_t index) const {
  const Slot& slot = slots_[index];
  if (done(slot)) {
    return {};
  }
  const std::size_t shard = index / 2;
  const bool result_goes_on = next() != table_.owner(shard);
  const bool sends = slot.sends_left > 0 ||
                     (!slot.home && (result_goes_on || !(slot.handed_on || is_last(shard))));
  const bool lost = (lost_previous_ && !slot.home) || (lost_next_ && sends);
  if (!lost) {
    return {};
  }
  const Rank gone = lost_previous_ && !slot.home ? previous() : next();
  return {StatusCode::kPeerLost, name_of(gone) + " closed its data connection"};
}

/// A header that does not fit the plan means another program, another plan or a broken peer:
/// nothing of it is used.
Status RingExchange::check_header(const spi::TransportEvent& event, std::size_t& shard) const {
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
  if (header.stage != spi::Stage::kPartialSum && header.stage != spi::Stage::kResult) {
    return wrong("of an unknown stage");
  }
  shard = table_.chunk(header.chunk).first_shard + header.shard;
  if (header.dtype != travels_as(shard, header.stage) || header.element_count != elements(shard) ||
      header.payload_bytes != payload_bytes(shard, header.stage, header.samples)) {
    return wrong("with another type or length than the plan");
  }
  const bool expected = header.stage == spi::Stage::kResult ? !is_last(shard) : hop(shard) > 0;
  if (event.peer != previous() || !expected) {
    return wrong("meant for another rank");
  }
  return {};
}

Status RingExchange::on_announced(const spi::TransportEvent& event) {
  std::size_t shard = 0;
  STRETTO_TRY(check_header(event, shard));
  return event.header.stage == spi::Stage::kResult ? on_result_announced(event, shard)
                                                   : on_partial_announced(event, shard);
}

Status RingExchange::on_partial_announced(const spi::TransportEvent& event, std::size_t shard) {
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
  if (slot.announced) {
    return {StatusCode::kCorruptWire,
            name_of(event.peer) + " sent its sum of chunk " + std::to_string(event.header.chunk) +
                " twice in step " + std::to_string(step)};
  }
  slot.announced = true;
  slot.message = event.message;
  slot.samples_so_far = event.header.samples;
  slot.empty = event.header.payload_bytes == 0;
  if (slot.empty) {
    STRETTO_TRY(transport_.accept(event.peer, event.message, {}));
  }
  if (slot.submitted) {
    begin(index);
  }
  return {};
}

Status RingExchange::on_result_announced(const spi::TransportEvent& event, std::size_t shard) {
  Slot& slot = slots_[slot_index(shard, event.header.step)];
  const bool summed = slot.handed_on || slot.sends_left > 0;
  if (slot.step != event.header.step || !summed || slot.home || slot.receiving) {
    return {StatusCode::kCorruptWire,
            name_of(event.peer) + " sent a result of step " + std::to_string(event.header.step) +
                " that nobody waits for"};
  }
  slot.receiving = true;
  return transport_.accept(event.peer, event.message, {slot.result, event.header.payload_bytes});
}

Status RingExchange::on_received(const spi::TransportEvent& event) {
  const spi::MessageHeader& header = event.header;
  if (header.payload_bytes == 0) {
    return {};  // its announcement said it all; its step, and its plan, may be over
  }
  const std::size_t shard = table_.chunk(header.chunk).first_shard + header.shard;
  const std::size_t index = slot_index(shard, header.step);
  if (header.stage == spi::Stage::kResult) {
    slots_[index].samples_so_far = header.samples;
    arrive_home(index);
    return {};
  }
  fault_point("part.received", index_of(transport_.rank()));
  add(index);
  return {};
}

}  // namespace stretto::exchange

// SPDX-License-Identifier: Apache-2.0
// The half of HostCommunicator that moves bytes: rounds of staging, producing and taking.
#include "collective/host_communicator.hpp"
#include "kernels/kernels.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace stretto::collective {

void HostCommunicator::publish(Counter Desk::*counter, std::uint64_t value) {
  // Pairs with the load in all_reach: who sees the count sees what it counts.
  (desk(rank()).*counter).value.store(value, std::memory_order_release);
  host_->show_core();
  for (std::size_t peer = 0; peer < ranks_; ++peer) {
    if (peer != rank()) {
      host_->wake(peer);
    }
  }
}

/// Whether all other ranks have counted up to `least`.
bool HostCommunicator::all_reach(std::uint64_t Peer::*known,
                                 Counter Desk::*counter,
                                 std::uint64_t least) noexcept {
  for (std::size_t peer = 0; peer < ranks_; ++peer) {
    if (peer == rank() || peers_[peer].*known >= least) {
      continue;
    }
    peers_[peer].*known = (desk(peer).*counter).value.load(std::memory_order_acquire);
    if (peers_[peer].*known < least) {
      return false;
    }
  }
  return true;
}

/// Moves what can move; returns whether anything did.
bool HostCommunicator::advance() {
  auto messages = pipes_->advance(*host_);
  if (!messages) {
    error_ = located(messages.error());
    return false;
  }
  return advance_job() || *messages;
}

/// Does one step of each kind, where it can.
bool HostCommunicator::advance_job() {
  if (!begun_) {
    return false;
  }
  bool moved = stage();
  moved = produce() || moved;
  moved = take() || moved;
  const std::uint64_t end = base_ + rounds_;
  if (staged_ == end && produced_ == end && taken_ == end && error_.is_ok() &&
      all_reach(&Peer::produced, &Desk::produced, end)) {
    ++ended_;
    base_ = end;
    started_.pop_front();
    begun_ = false;
    if (!started_.empty()) {
      begin();
    }
    moved = true;
  }
  return moved && error_.is_ok();
}

bool HostCommunicator::stage() {
  if (staged_ == base_ + rounds_ ||
      (staged_ >= kSlots && !all_reach(&Peer::produced, &Desk::produced, staged_ - kSlots + 1))) {
    return false;
  }
  const std::size_t piece = kPieceBytes / width();
  const std::size_t first = static_cast<std::size_t>(staged_ - base_) * piece;
  for (std::size_t owner = 0; owner < ranks_; ++owner) {
    const Block at = block(owner);
    if (owner != rank() && first < at.count) {
      std::memcpy(stage_slot(rank(), staged_, owner),
                  job().input + (at.input + first) * width(),
                  std::min(piece, at.count - first) * width());
    }
  }
  publish(&Desk::staged, ++staged_);
  return true;
}

/// Reads what the others are about to do; false: not all have begun, or they do something else.
bool HostCommunicator::check_notes() {
  if (!all_reach(&Peer::staged, &Desk::staged, base_ + 1)) {
    return false;
  }
  all_write_through_ = true;
  all_read_in_place_ = true;
  for (std::size_t peer = 0; peer < ranks_; ++peer) {
    if (peer == rank()) {
      all_write_through_ = all_write_through_ && note().output_file != 0;
      all_read_in_place_ = all_read_in_place_ && (note().input_file != 0 || !sums());
      continue;
    }
    const Note theirs = desk(peer).notes[note().number & 1U];
    if (Status checked = check_note(peer, theirs); !checked.is_ok()) {
      error_ = located(std::move(checked));
      return false;
    }
    all_write_through_ = all_write_through_ && theirs.output_file != 0;
    all_read_in_place_ = all_read_in_place_ && (theirs.input_file != 0 || !sums());
  }
  return true;
}

Status HostCommunicator::check_note(std::size_t peer, const Note& theirs) {
  const Call& own = job().call;
  if (theirs.number != note().number || theirs.call != own) {
    return mismatch(note().number, own, peer, theirs.call);
  }
  Peer& known = peers_[peer];
  known.input = nullptr;
  known.output = nullptr;
  const bool spread = own.kind == Kind::kReduceScatter;
  const std::size_t bytes = own.count * width();
  if (theirs.input_file != 0) {
    known.input = peer_arenas_[peer].at(
        theirs.input_file, theirs.input_offset, spread ? ranks_ * bytes : bytes);
  }
  if (theirs.output_file != 0) {
    const std::size_t all = own.kind == Kind::kAllGather ? ranks_ * bytes : bytes;
    known.output = peer_arenas_[peer].at(theirs.output_file, theirs.output_offset, all);
  }
  if ((known.input == nullptr) != (theirs.input_file == 0) ||
      (known.output == nullptr) != (theirs.output_file == 0)) {
    return {StatusCode::kCorruptWire,
            "rank " + std::to_string(peer) + " named memory that it has not handed over"};
  }
  return {};
}

bool HostCommunicator::produce() {
  if (produced_ == base_ + rounds_ || !all_reach(&Peer::staged, &Desk::staged, produced_ + 1) ||
      (produced_ == base_ && !check_notes())) {
    return false;
  }
  const bool uses_slot = !all_write_through_ && distributes();
  if (uses_slot && produced_ >= kSlots &&
      !all_reach(&Peer::taken, &Desk::taken, produced_ - kSlots + 1)) {
    return false;
  }
  const std::size_t piece = kPieceBytes / width();
  const std::size_t bite = kBiteBytes / width();
  const std::size_t first = static_cast<std::size_t>(produced_ - base_) * piece;
  const std::size_t end = std::min(first + piece, block(rank()).count);
  std::byte* const slot = uses_slot ? result_slot(rank(), produced_) : nullptr;
  for (std::size_t at = first; at < end; at += bite) {
    produce_bite(at, std::min(bite, end - at), slot);
  }
  ++produced_;
  // Who stages waits for each round; where nobody does, one sign at the end is enough.
  if (uses_slot || !all_read_in_place_ || produced_ == base_ + rounds_) {
    publish(&Desk::produced, produced_);
  }
  return true;
}

/// Elements [element, element + count) of this rank's block, to wherever they are wanted.
void HostCommunicator::produce_bite(std::size_t element, std::size_t count, std::byte* slot) {
  const Block own = block(rank());
  const std::size_t bytes = count * width();
  std::byte* const destination = job().output + (own.output + element) * width();
  if (sums()) {
    sum_bite(element, count, destination);
  } else {
    const std::byte* source = job().input + (own.input + element) * width();
    if (source != destination) {
      std::memcpy(destination, source, bytes);
    }
  }
  if (!distributes()) {
    return;
  }
  for (std::size_t peer = 0; peer < ranks_; ++peer) {
    if (peer != rank() && peers_[peer].output != nullptr) {
      std::memcpy(peers_[peer].output + (own.output + element) * width(), destination, bytes);
    }
  }
  if (slot != nullptr) {
    std::memcpy(slot + element % (kPieceBytes / width()) * width(), destination, bytes);
  }
}

void HostCommunicator::sum_bite(std::size_t element, std::size_t count, std::byte* destination) {
  spi::Operation add;
  add.kind = spi::Operation::Kind::kWeightedSum;
  add.dtype = job().call.dtype;
  add.element_count = count;
  add.destination = destination;
  add.accumulator = accumulator_.empty() ? nullptr : accumulator_.data();
  add.finishes = false;
  if (job().call.reduction == Reduction::kMean) {
    add.scale = static_cast<float>(1.0 / static_cast<double>(ranks_));
  }
  const std::size_t offset = (block(rank()).input + element) * width();
  const std::size_t in_slot = element % (kPieceBytes / width()) * width();
  for (std::size_t peer = 0; peer < ranks_; ++peer) {
    if (add.source_count == spi::kMaxSources) {
      kernels::run(add);
      add.begins = false;
      add.source_count = 0;
    }
    const std::byte* source = nullptr;
    if (peer == rank()) {
      source = job().input + offset;
    } else if (peers_[peer].input != nullptr) {
      source = peers_[peer].input + offset;
    } else {
      source = stage_slot(peer, produced_, rank()) + in_slot;
    }
    add.source[add.source_count] = source;
    add.weight[add.source_count++] = 1.0F;
  }
  add.finishes = true;
  kernels::run(add);
}

bool HostCommunicator::take() {
  if (taken_ == base_ + rounds_ || !all_reach(&Peer::produced, &Desk::produced, taken_ + 1)) {
    return false;
  }
  const std::size_t piece = kPieceBytes / width();
  const std::size_t first = static_cast<std::size_t>(taken_ - base_) * piece;
  for (std::size_t owner = 0; owner < ranks_; ++owner) {
    const Block at = block(owner);
    if (owner != rank() && first < at.count) {
      std::memcpy(job().output + (at.output + first) * width(),
                  result_slot(owner, taken_),
                  std::min(piece, at.count - first) * width());
    }
  }
  publish(&Desk::taken, ++taken_);
  return true;
}

}  // namespace stretto::collective

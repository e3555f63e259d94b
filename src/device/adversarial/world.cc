// SPDX-License-Identifier: Apache-2.0
#include "device/adversarial/world.hpp"

#include "base/check.hpp"
#include "kernels/kernels.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include <unistd.h>

namespace stretto::device {
namespace {

constexpr std::size_t kCapacity = 64;
constexpr std::uint32_t kMostRefusals = 6;

const Status& refusal() {
  static const Status kRefusal(StatusCode::kWouldBlock,
                               "the adversarial stream refuses; poll events, repeat");
  return kRefusal;
}

bool overlap(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
  return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

std::size_t source_count(const spi::Operation& operation) {
  switch (operation.kind) {
    case spi::Operation::Kind::kZero:
    case spi::Operation::Kind::kCall:
      return 0;
    case spi::Operation::Kind::kCopy:
    case spi::Operation::Kind::kAccumulate:
      return 1;
    case spi::Operation::Kind::kWeightedSum:
      return operation.source_count;
  }
  return 0;
}

bool reads(const spi::Operation& operation, const std::byte* begin, std::size_t bytes) {
  const std::size_t length = operation.element_count * size_of(operation.dtype);
  for (std::size_t r = 0; r < source_count(operation); ++r) {
    if (overlap(operation.source[r], length, begin, bytes)) {
      return true;
    }
  }
  return false;
}

bool uses(const spi::Operation& operation, const std::byte* begin, std::size_t bytes) {
  const std::size_t length = operation.element_count * size_of(operation.dtype);
  const auto* accumulator = reinterpret_cast<const std::byte*>(operation.accumulator);
  return reads(operation, begin, bytes) || overlap(operation.destination, length, begin, bytes) ||
         (accumulator != nullptr &&
          overlap(accumulator, operation.element_count * sizeof(float), begin, bytes));
}

/// Signalling NaNs made of 0xa5 as far as the format allows.
void fill_with_nan(DType dtype, std::byte* begin, std::size_t n) {
  constexpr std::uint32_t kFloat = 0x7fa5a5a5U;
  const std::uint16_t narrow = dtype == DType::kFloat16 ? 0x7da5U : 0x7fa5U;
  for (std::size_t i = 0; i < n; ++i) {
    if (dtype == DType::kFloat32) {
      std::memcpy(begin + 4 * i, &kFloat, sizeof kFloat);
    } else {
      std::memcpy(begin + 2 * i, &narrow, sizeof narrow);
    }
  }
}

}  // namespace

void World::add(StreamState& stream) {
  const MutexLock lock(mutex_);
  streams_.push_back(&stream);
}

void World::remove(StreamState& stream) {
  const MutexLock lock(mutex_);
  std::erase(streams_, &stream);
}

void World::check_unused(const EventState& event) {
  const MutexLock lock(mutex_);
  for (const StreamState* stream : streams_) {
    for (const AdversarialEntry& entry : stream->queue) {
      const bool event_was_destroyed_before_its_stream_was_done = entry.event == &event;
      STRETTO_CHECK(!event_was_destroyed_before_its_stream_was_done);
    }
  }
}

void World::check_unused(const std::byte* begin, std::size_t bytes) {
  const MutexLock lock(mutex_);
  const bool memory_was_freed_under_an_outstanding_operation = in_use(begin, bytes);
  STRETTO_CHECK(!memory_was_freed_under_an_outstanding_operation);
}

bool World::in_use(const std::byte* begin, std::size_t bytes) const {
  for (const StreamState* stream : streams_) {
    for (const AdversarialEntry& entry : stream->queue) {
      if (entry.kind == AdversarialEntry::Kind::kOperation && uses(entry.operation, begin, bytes)) {
        return true;
      }
    }
  }
  return false;
}

Status World::refuse(StreamState& stream) {
  if (stream.queue.size() >= kCapacity) {
    step(stream);  // who only posts must get on as well
    return refusal();
  }
  if (!stream.refused_last && below(8) == 0) {
    stream.refused_last = true;
    return refusal();
  }
  stream.refused_last = false;
  return {};
}

Status World::post(StreamState& stream, const spi::Operation& operation) {
  STRETTO_TRY(kernels::validate(operation));
  const MutexLock lock(mutex_);
  STRETTO_TRY(refuse(stream));
  poison(operation);
  stream.queue.emplace_back().operation = operation;
  stir(stream);
  return {};
}

Status World::record(StreamState& stream, EventState& event) {
  const MutexLock lock(mutex_);
  STRETTO_TRY(refuse(stream));
  event.refusals_left = below(kMostRefusals + 1);
  AdversarialEntry& entry = stream.queue.emplace_back();
  entry.kind = AdversarialEntry::Kind::kRecord;
  entry.event = &event;
  entry.ticket = ++event.recorded;
  if (stream.records_open++ == 0) {
    const std::uint64_t one = 1;
    static_cast<void>(::write(stream.wake_up.get(), &one, sizeof one));
  }
  stir(stream);
  return {};
}

Status World::wait_for(StreamState& stream, EventState* event, spi::Event* foreign) {
  const MutexLock lock(mutex_);
  STRETTO_TRY(refuse(stream));
  AdversarialEntry& entry = stream.queue.emplace_back();
  entry.kind = AdversarialEntry::Kind::kWait;
  entry.event = event;
  entry.foreign = event == nullptr ? foreign : nullptr;
  entry.ticket = event == nullptr ? 0 : event->recorded;
  stir(stream);
  return {};
}

void World::drain(StreamState& stream) {
  const MutexLock lock(mutex_);
  if (stream.records_open == 0) {
    std::uint64_t count = 0;
    static_cast<void>(::read(stream.wake_up.get(), &count, sizeof count));
  }
}

bool World::ask(EventState& event) {
  const MutexLock lock(mutex_);
  if (event.done()) {
    return true;
  }
  if (streams_.empty()) {
    return false;  // its stream is gone
  }
  if (event.refusals_left > 0) {
    --event.refusals_left;
    stir(*streams_[below(static_cast<std::uint32_t>(streams_.size()))]);
    return event.done();
  }
  run_until_done(event, event.recorded);
  return event.done();
}

Status World::wait(EventState& event, Deadline deadline) {
  const MutexLock lock(mutex_);
  for (;;) {
    run_until_done(event, event.recorded);
    if (event.done()) {
      return {};
    }
    if (deadline.passed()) {
      return {StatusCode::kDeadlineExceeded,
              "work on the adversarial stream before this event was not done in time"};
    }
    // Only another device, or another thread, can help; let it.
    never_notified_.wait_until(
        mutex_, std::min(deadline.when(), Clock::now() + std::chrono::milliseconds(1)));
  }
}

std::uint32_t World::below(std::uint32_t bound) {
  return static_cast<std::uint32_t>(random_() % bound);
}

void World::stir(StreamState& stream) {
  switch (below(4)) {
    case 0:  // as early as can be
      while (step(stream)) {
      }
      return;
    case 1: {  // a little, anywhere
      for (std::uint32_t steps = below(4); steps > 0; --steps) {
        step(*streams_[below(static_cast<std::uint32_t>(streams_.size()))]);
      }
      return;
    }
    default:  // as late as can be
      return;
  }
}

bool World::step(StreamState& stream) {
  if (stream.queue.empty()) {
    return false;
  }
  const AdversarialEntry& entry = stream.queue.front();
  switch (entry.kind) {
    case AdversarialEntry::Kind::kOperation:
      kernels::run(entry.operation);
      break;
    case AdversarialEntry::Kind::kRecord:
      complete(stream, entry);
      break;
    case AdversarialEntry::Kind::kWait:
      if (entry.event != nullptr ? entry.event->completed < entry.ticket : !entry.foreign->done()) {
        return false;
      }
      break;
  }
  stream.queue.pop_front();
  return true;
}

void World::complete(StreamState& stream, const AdversarialEntry& entry) {
  entry.event->completed = std::max(entry.event->completed, entry.ticket);
  --stream.records_open;
}

void World::run_until_done(const EventState& event, std::uint64_t ticket) {
  const auto records_it = [&](const StreamState* stream) {
    return std::any_of(stream->queue.begin(), stream->queue.end(), [&](const auto& entry) {
      return entry.kind == AdversarialEntry::Kind::kRecord && entry.event == &event &&
             entry.ticket == ticket;
    });
  };
  const auto found = std::find_if(streams_.begin(), streams_.end(), records_it);
  if (found == streams_.end()) {
    return;  // its stream is gone
  }
  StreamState& stream = **found;
  while (event.completed < ticket) {
    if (step(stream)) {
      continue;
    }
    const AdversarialEntry blocked = stream.queue.front();
    if (blocked.event == nullptr) {
      return;  // waits for another device
    }
    // A record stands before every wait for it, so this ends.
    run_until_done(*blocked.event, blocked.ticket);
    if (blocked.event->completed < blocked.ticket) {
      return;
    }
  }
}

void World::poison(const spi::Operation& operation) {
  const std::size_t n = operation.element_count;
  if (operation.kind == spi::Operation::Kind::kAccumulate || operation.destination == nullptr ||
      n == 0) {
    return;
  }
  if (operation.kind == spi::Operation::Kind::kWeightedSum && !operation.finishes) {
    auto* accumulator = reinterpret_cast<std::byte*>(operation.accumulator);
    if (operation.begins && !in_use(accumulator, n * sizeof(float))) {
      fill_with_nan(DType::kFloat32, accumulator, n);
    }
    return;
  }
  const std::size_t bytes = n * size_of(operation.dtype);
  if (!reads(operation, operation.destination, bytes) && !in_use(operation.destination, bytes)) {
    fill_with_nan(operation.dtype, operation.destination, n);
  }
}

}  // namespace stretto::device

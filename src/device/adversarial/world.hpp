// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"
#include "base/mutex.hpp"

#include "stretto/spi/device.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

namespace stretto::device {

/// What the adversarial device knows of one event.  Guarded by the world's mutex.
struct EventState {
  std::uint64_t recorded = 0;
  std::uint64_t completed = 0;
  std::uint32_t refusals_left = 0;  ///< how often done() still says no before work is done for it

  bool done() const noexcept { return completed >= recorded; }
};

/// One entry of an adversarial stream.
struct AdversarialEntry {
  enum class Kind : std::uint8_t { kOperation, kRecord, kWait };
  Kind kind = Kind::kOperation;
  spi::Operation operation;
  EventState* event = nullptr;    ///< of a record, or of a wait for one of our events
  spi::Event* foreign = nullptr;  ///< of a wait for an event of another device
  std::uint64_t ticket = 0;
};

/// One adversarial stream.  Guarded by the world's mutex.
struct StreamState {
  std::deque<AdversarialEntry> queue;
  std::size_t records_open = 0;
  bool refused_last = false;
  FileDescriptor wake_up;  ///< readable while records_open > 0
};

/// All streams and events of one adversarial device, and the dice.
///
/// Threading: thread-safe; operations run on whichever thread posts, asks or waits.
class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed) {}

  void add(StreamState& stream) STRETTO_EXCLUDES(mutex_);
  void remove(StreamState& stream) STRETTO_EXCLUDES(mutex_);
  /// Aborts if work that is outstanding names the event, or the memory.
  void check_unused(const EventState& event) STRETTO_EXCLUDES(mutex_);
  void check_unused(const std::byte* begin, std::size_t bytes) STRETTO_EXCLUDES(mutex_);

  Status post(StreamState& stream, const spi::Operation& operation) STRETTO_EXCLUDES(mutex_);
  Status record(StreamState& stream, EventState& event) STRETTO_EXCLUDES(mutex_);
  /// `event` is null for an event of another device.
  Status wait_for(StreamState& stream, EventState* event, spi::Event* foreign)
      STRETTO_EXCLUDES(mutex_);
  void drain(StreamState& stream) STRETTO_EXCLUDES(mutex_);
  bool ask(EventState& event) STRETTO_EXCLUDES(mutex_);
  Status wait(EventState& event, Deadline deadline) STRETTO_EXCLUDES(mutex_);

 private:
  Status refuse(StreamState& stream) STRETTO_REQUIRES(mutex_);
  std::uint32_t below(std::uint32_t bound) STRETTO_REQUIRES(mutex_);
  /// Works a random amount.
  void stir(StreamState& stream) STRETTO_REQUIRES(mutex_);
  /// Does the entry at the head; false if there is none, or it has to wait.
  bool step(StreamState& stream) STRETTO_REQUIRES(mutex_);
  /// Does what has to be done for the event's last record, and no more.
  void run_until_done(const EventState& event, std::uint64_t ticket) STRETTO_REQUIRES(mutex_);
  void poison(const spi::Operation& operation) STRETTO_REQUIRES(mutex_);
  bool in_use(const std::byte* begin, std::size_t bytes) const STRETTO_REQUIRES(mutex_);
  static void complete(StreamState& stream, const AdversarialEntry& entry);

  Mutex mutex_;
  ConditionVariable never_notified_;
  std::mt19937_64 random_ STRETTO_GUARDED_BY(mutex_);
  std::vector<StreamState*> streams_ STRETTO_GUARDED_BY(mutex_);
};

}  // namespace stretto::device

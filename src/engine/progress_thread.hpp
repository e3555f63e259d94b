// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/thread_role.hpp"
#include "base/waker.hpp"
#include "engine/board.hpp"
#include "engine/command.hpp"
#include "engine/stepper.hpp"

#include "stretto/spi/control.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include <atomic_queue/atomic_queue.h>

namespace stretto::engine {

/// The one thread that owns exchange, transport and step state.
///
/// It looks for work, spins for a moment if there are cores to spare, and sleeps on descriptors.
/// Threading: push is thread-safe; start and stop are the owner's.
class ProgressThread {
 public:
  struct Parts {
    std::unique_ptr<Stepper> stepper;
    spi::Exchange* exchange = nullptr;
    spi::ControlPlane* control = nullptr;
    Board* board = nullptr;
    std::size_t queue_capacity = 0;  ///< room for every command of a backward pass, and more
    bool may_spin = false;           ///< there are more cores than busy threads
  };

  static Result<std::unique_ptr<ProgressThread>> make(Parts parts);
  ~ProgressThread() { stop(); }
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  void start();
  /// Ends the thread; waits for it, never for a peer.
  void stop() noexcept;
  /// No step follows, and peers may go as soon as all have agreed to that: whether one was lost
  /// before is heard from the control plane, and no longer logged here.
  void expect_end() noexcept { ending_.store(true, std::memory_order_relaxed); }

  /// One push to a queue; wakes the thread if it sleeps.
  ///
  /// Errors: kInternal if the queue is full, which cannot be if has_room was asked before a pass.
  Status push(const Command& command) noexcept;
  /// Whether so many commands more would find room; the board says when this may have changed.
  bool has_room(std::size_t commands) const noexcept {
    return queue_.was_size() + commands <= capacity_;
  }
  /// The training thread has waited long enough: the thread says for what, and fails.  Overtakes
  /// all commands, since one of them may be what never ends.
  void give_up() noexcept;

  /// For use while the thread is parked or has not been started.
  Stepper& stepper() noexcept {
    role_.assume();
    return *stepper_;
  }

 private:
  using Queue = atomic_queue::AtomicQueueB2<Command>;

  ProgressThread(Parts parts, Waker waker);
  void run() STRETTO_EXCLUDES(role_);
  bool turn() STRETTO_REQUIRES(role_);
  Result<bool> work() STRETTO_REQUIRES(role_);
  Result<bool> take_commands() STRETTO_REQUIRES(role_);
  Status handle(const Command& command) STRETTO_REQUIRES(role_);
  void sleep() STRETTO_REQUIRES(role_);
  void fail(const Status& status) STRETTO_REQUIRES(role_);
  void come_to_rest() STRETTO_REQUIRES(role_);
  Status better_reason(const Status& status) STRETTO_REQUIRES(role_);

  ThreadRole role_;
  std::unique_ptr<Stepper> stepper_ STRETTO_GUARDED_BY(role_);
  std::optional<Command> stalled_ STRETTO_GUARDED_BY(role_);
  bool parked_ STRETTO_GUARDED_BY(role_) = false;
  TimePoint last_work_ STRETTO_GUARDED_BY(role_){};
  spi::Exchange& exchange_;
  spi::ControlPlane& control_;
  Board& board_;
  std::size_t capacity_;
  Queue queue_;
  Waker waker_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> ending_{false};
  std::atomic<bool> given_up_{false};
  bool may_spin_;
  std::thread thread_;
};

}  // namespace stretto::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/progress_thread.hpp"

#include "base/log.hpp"

#include <algorithm>
#include <array>
#include <string>

#include <poll.h>

namespace stretto::engine {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
// Gradients come in bursts.  For so long after some work the thread naps instead of sleeping, and
// looks by itself: waking it would cost the caller of ready() more than all else, and a gradient
// that waits for one nap still leaves within a millisecond.
constexpr auto kDozing = std::chrono::microseconds(500);
constexpr auto kDoze = std::chrono::microseconds(200);
// A sleeping thread looks around this often even if nothing calls it: a lost peer's descriptor is
// watched, so this only bounds the harm of a missed sign.
constexpr auto kNap = std::chrono::milliseconds(500);

// What a stream refused is tried again after so long, though nothing calls.
constexpr auto kRetry = std::chrono::microseconds(100);

}  // namespace

Result<std::unique_ptr<ProgressThread>> ProgressThread::make(Parts parts) {
  STRETTO_TRY_ASSIGN(auto waker, Waker::make());
  return std::unique_ptr<ProgressThread>(new ProgressThread(std::move(parts), std::move(waker)));
}

ProgressThread::ProgressThread(Parts parts, Waker waker)
    : stepper_(std::move(parts.stepper)),
      exchange_(*parts.exchange),
      control_(*parts.control),
      board_(*parts.board),
      capacity_(parts.queue_capacity),
      queue_(static_cast<unsigned>(parts.queue_capacity)),
      waker_(std::move(waker)),
      may_spin_(parts.may_spin) {}

void ProgressThread::start() {
  thread_ = std::thread([this] { run(); });
}

void ProgressThread::stop() noexcept {
  stop_.store(true, std::memory_order_release);
  waker_.wake();
  if (thread_.joinable()) {
    thread_.join();
  }
}

Status ProgressThread::push(const Command& command) noexcept {
  if (!queue_.try_push(command)) {
    return {StatusCode::kInternal, "the queue of gradients is full"};
  }
  if (command.kind == Command::Kind::kReady) {
    waker_.nudge();
  } else {
    waker_.wake();
  }
  return {};
}

void ProgressThread::give_up() noexcept {
  given_up_.store(true, std::memory_order_release);
  waker_.wake();
}

void ProgressThread::run() {
  RoleScope scope(role_);
  last_work_ = Clock::now();
  while (!stop_.load(std::memory_order_acquire)) {
    if (turn()) {
      last_work_ = Clock::now();
    } else if (!may_spin_ || Clock::now() - last_work_ > kSpin) {
      sleep();
    }
  }
}

/// One look at everything; returns whether there was something to do.
bool ProgressThread::turn() {
  if (board_.failed.load(std::memory_order_acquire)) {
    if (!board_.quiet.load(std::memory_order_relaxed)) {
      come_to_rest();  // another thread has failed the step
    }
    return false;
  }
  auto worked = work();
  if (!worked) {
    fail(worked.error());
    return false;
  }
  return *worked;
}

Result<bool> ProgressThread::work() {
  STRETTO_TRY(control_.health());
  if (given_up_.load(std::memory_order_acquire)) {
    return stretto::fail(StatusCode::kDeadlineExceeded, "the wait ran out");
  }
  STRETTO_TRY_ASSIGN(const bool commanded, take_commands());
  if (commanded) {
    board_.changed.notify();  // there is room in the queue again
  }
  if (parked_) {
    return commanded;
  }
  // The clock is read behind the commands: a gradient never leaves before it was ready.
  STRETTO_TRY_ASSIGN(const bool moved, stepper_->advance(Clock::now()));
  return commanded || moved;
}

Result<bool> ProgressThread::take_commands() {
  bool any = false;
  Command command;
  while (true) {
    if (stalled_) {
      command = *stalled_;
    } else if (!queue_.try_pop(command)) {
      return any;
    }
    const Status handled = handle(command);
    if (handled.code() == StatusCode::kWouldBlock) {
      stalled_ = command;
      return any;
    }
    stalled_.reset();
    STRETTO_TRY(handled);
    any = true;
  }
}

Status ProgressThread::handle(const Command& command) {
  switch (command.kind) {
    case Command::Kind::kPark:
    case Command::Kind::kResume:
      parked_ = command.kind == Command::Kind::kPark;
      board_.parked.store(parked_ ? 1 : 0, std::memory_order_release);
      board_.changed.notify();
      return {};
    default:
      return stepper_->handle(command);
  }
}

void ProgressThread::sleep() {
  const bool failed = board_.failed.load(std::memory_order_relaxed);
  const bool dozing =
      !parked_ && !failed && stepper_->in_step() && Clock::now() - last_work_ < kDozing;
  waker_.prepare(dozing ? Waker::Sleep::kNap : Waker::Sleep::kDeep);
  // Parked, the stepper and its exchange are the training thread's.
  const TimePoint due = parked_ ? TimePoint::max() : stepper_->next_due();
  std::chrono::nanoseconds left = dozing ? std::chrono::nanoseconds(kDoze) : kNap;
  if (stalled_) {
    left = kRetry;
  } else if (due < Clock::now() + left) {
    left = Deadline(due).left();
  }
  // After a failure nobody takes commands any more.
  const bool idle = board_.quiet.load(std::memory_order_acquire) ||
                    (queue_.was_empty() && !given_up_.load(std::memory_order_acquire));
  if (idle && !stop_.load(std::memory_order_acquire)) {
    std::array<pollfd, 4> descriptors{
        {{waker_.descriptor(), POLLIN, 0}, {control_.descriptor(), POLLIN, 0}}};
    // After a failure all but the first may stay readable.
    nfds_t count = failed ? 1 : 2;
    if (!failed && !parked_) {
      descriptors[count++] = {exchange_.descriptor(), POLLIN, 0};
      descriptors[count++] = {stepper_->descriptor(), POLLIN, 0};
    }
    timespec timeout{};
    const auto wait = parked_ || failed ? std::chrono::nanoseconds(kNap) : left;
    timeout.tv_nsec = static_cast<long>(wait.count());
    static_cast<void>(::ppoll(descriptors.data(), count, &timeout, nullptr));
  }
  waker_.finish();
}

/// Says what the step waited for, tells the others, and wakes whoever waits.
void ProgressThread::fail(const Status& status) {
  const Status reason = better_reason(status);
  // Parked, the stepper is the training thread's, and nothing is under way.
  const std::string waiting = parked_ ? "between two steps" : stepper_->describe_waiting();
  const Status full(reason.code(), waiting + ": " + std::string(reason.message()));
  log(ending_.load(std::memory_order_relaxed) ? LogLevel::kDebug : LogLevel::kError,
      full.to_string());
  // Of a rank that died the control plane tells everybody; of a broken data connection between two
  // ranks that live, nobody but these two knows.
  if (reason.code() != StatusCode::kPeerLost ||
      (control_.health().is_ok() && !ending_.load(std::memory_order_relaxed))) {
    control_.abort(full);
  }
  board_.fail(full);
  come_to_rest();
}

/// Lets go of the user's memory; whoever reports the failure waits for this, since the caller may
/// then free its gradients.
void ProgressThread::come_to_rest() {
  if (!parked_) {
    stepper_->quiesce();
  }
  board_.quiet.store(true, std::memory_order_release);
  board_.changed.notify();
}

/// A data connection that ends says less than the control connection, which may take a moment
/// longer.
Status ProgressThread::better_reason(const Status& status) {
  if (status.code() != StatusCode::kPeerLost || !control_.health().is_ok()) {
    return control_.health().is_ok() ? status : control_.health();
  }
  pollfd descriptor{control_.descriptor(), POLLIN, 0};
  constexpr int kPatienceMs = 1000;
  static_cast<void>(::poll(&descriptor, 1, kPatienceMs));
  const Status health = control_.health();
  return health.is_ok() ? status : health;
}

}  // namespace stretto::engine

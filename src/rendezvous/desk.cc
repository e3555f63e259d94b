// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/desk.hpp"

#include "rendezvous/gather_round.hpp"

#include <chrono>
#include <utility>

namespace stretto::rendezvous {
namespace {

using std::chrono::milliseconds;

}  // namespace

Status Desk::wait_joined(Deadline deadline) {
  MutexLock lock(mutex_);
  while (!joined_) {
    if (!broken_.is_ok()) {
      return broken_;
    }
    STRETTO_TRY(bell_.health());
    if (deadline.passed()) {
      return {StatusCode::kDeadlineExceeded,
              "rank " + std::to_string(rank_) + " waited until its deadline for " +
                  (awaited_.empty() ? "rank 0 to say that all ranks are there" : awaited_) +
                  "; start what is missing, or raise STRETTO_TIMEOUT"};
    }
    changed_.wait_until(mutex_, deadline.when());
  }
  return {};
}

Result<std::vector<spi::Bytes>> Desk::gather(std::string_view what,
                                             std::span<const std::byte> mine,
                                             Deadline deadline) {
  STRETTO_TRY(check_gather_call(what, mine.size()));
  MutexLock lock(mutex_);
  if (stopped_) {
    return fail(StatusCode::kAborted,
                "rank " + std::to_string(rank_) + " has left the group or given up before");
  }
  STRETTO_TRY(bell_.health());
  STRETTO_TRY(broken_);
  outcome_.reset();
  missing_.reset();
  requests_.gather = GatherCall{++sequence_, std::string(what), {mine.begin(), mine.end()}};
  waker_.wake();
  return wait_gathered(what, deadline);
}

Result<std::vector<spi::Bytes>> Desk::wait_gathered(std::string_view what, Deadline deadline) {
  // Rank 0 knows who has not called; the others ask it, and wait no longer than this.
  constexpr milliseconds kAnswerTime{250};
  std::optional<Deadline> answer;
  while (true) {
    if (outcome_) {
      return std::move(*std::exchange(outcome_, std::nullopt));
    }
    STRETTO_TRY(bell_.health());
    STRETTO_TRY(broken_);
    if (stopped_) {
      return fail(StatusCode::kAborted,
                  "rank " + std::to_string(rank_) + " left the group during the all_gather for '" +
                      std::string(what) + "'");
    }
    if (deadline.passed() && !answer) {
      requests_.ask_missing = sequence_;
      waker_.wake();
      answer = Deadline::after(kAnswerTime);
    }
    if (answer && (missing_ || answer->passed())) {
      broken_ = {StatusCode::kDeadlineExceeded,
                 "rank " + std::to_string(rank_) + " waited in the all_gather for '" +
                     std::string(what) + "' until its deadline, but " +
                     (missing_ ? *missing_ : std::string("some ranks")) + " did not call"};
      return fail(broken_);
    }
    changed_.wait_until(mutex_, answer ? answer->when() : deadline.when());
  }
}

void Desk::request_abort(std::string text) {
  MutexLock lock(mutex_);
  if (stopped_) {
    return;
  }
  if (broken_.is_ok()) {
    broken_ = {StatusCode::kAborted, "rank " + std::to_string(rank_) + " gave up before: " + text};
  }
  requests_.abort = std::move(text);
  waker_.wake();
  const Deadline deadline = Deadline::after(milliseconds(500));
  while (!abort_sent_ && !stopped_ && !deadline.passed()) {
    changed_.wait_until(mutex_, deadline.when());
  }
}

void Desk::request_stop(Goodbye goodbye) {
  MutexLock lock(mutex_);
  stopped_ = true;
  requests_.stop = true;
  requests_.say_goodbye = requests_.say_goodbye || goodbye == Goodbye::kSay;
  changed_.notify_all();
  waker_.wake();
}

bool Desk::has_requests() const {
  MutexLock lock(mutex_);
  return requests_.stop || requests_.gather || requests_.ask_missing || requests_.abort;
}

Requests Desk::take() {
  MutexLock lock(mutex_);
  return std::exchange(requests_, Requests{});
}

void Desk::joined() {
  MutexLock lock(mutex_);
  joined_ = true;
  changed_.notify_all();
}

void Desk::awaiting(std::string ranks) {
  MutexLock lock(mutex_);
  awaited_ = std::move(ranks);
}

void Desk::gathered(std::uint64_t sequence, std::vector<spi::Bytes> blobs) {
  MutexLock lock(mutex_);
  if (sequence == sequence_) {
    outcome_ = std::move(blobs);
    changed_.notify_all();
  }
}

void Desk::broken(Status status) {
  MutexLock lock(mutex_);
  if (broken_.is_ok()) {
    broken_ = std::move(status);
    changed_.notify_all();
  }
}

void Desk::still_missing(std::uint64_t sequence, std::string ranks) {
  MutexLock lock(mutex_);
  if (sequence == sequence_) {
    missing_ = std::move(ranks);
    changed_.notify_all();
  }
}

void Desk::lost(const Status& status) {
  MutexLock lock(mutex_);
  bell_.ring(status);
  changed_.notify_all();
}

void Desk::abort_sent() {
  MutexLock lock(mutex_);
  abort_sent_ = true;
  changed_.notify_all();
}

}  // namespace stretto::rendezvous

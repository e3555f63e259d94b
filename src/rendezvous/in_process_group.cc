// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are threads of one process meet in memory.  Same promises as over sockets: deadlines,
// names in errors, a rank that goes without a goodbye is lost to the others.
#include "base/check.hpp"
#include "base/mutex.hpp"
#include "rendezvous/gather_round.hpp"
#include "rendezvous/health_bell.hpp"
#include "rendezvous/join.hpp"
#include "rendezvous/words.hpp"

#include "stretto/group.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace stretto {
namespace {

using rendezvous::GatherRound;
using rendezvous::HealthBell;

enum class Presence { kHere, kLeft, kLost };

/// What the ranks share.
///
/// Threading: thread-safe.
class Meeting {
 public:
  Meeting(std::size_t size, std::vector<HealthBell> bells)
      : bells_(std::move(bells)),
        round_(size),
        presence_(size, Presence::kHere),
        sequences_(size, 0),
        results_(size) {}

  std::size_t size() const noexcept { return bells_.size(); }
  const HealthBell& bell(std::size_t rank) const noexcept { return bells_[rank]; }

  Result<std::vector<spi::Bytes>> gather(std::size_t rank,
                                         std::string_view what,
                                         std::span<const std::byte> mine,
                                         Deadline deadline) {
    STRETTO_TRY(rendezvous::check_gather_call(what, mine.size()));
    MutexLock lock(mutex_);
    if (!broken_.is_ok()) {
      return fail(broken_);
    }
    STRETTO_TRY(bells_[rank].health());
    if (presence_[rank] != Presence::kHere) {
      return fail(StatusCode::kAborted,
                  "rank " + std::to_string(rank) + " has left the group or given up before");
    }
    const std::uint64_t sequence = ++sequences_[rank];
    if (Status added = round_.add(rank, sequence, what, {mine.begin(), mine.end()});
        !added.is_ok()) {
      return fail(give_up(std::move(added)));
    }
    results_[rank].reset();
    if (round_.complete()) {
      auto all = std::make_shared<const std::vector<spi::Bytes>>(round_.take());
      for (auto& result : results_) {
        result = all;
      }
      changed_.notify_all();
    }
    return wait_for_others(rank, what, deadline);
  }

  void depart(std::size_t rank, Presence how, const Status& reason) {
    MutexLock lock(mutex_);
    if (presence_[rank] != Presence::kHere) {
      return;
    }
    presence_[rank] = how;
    if (how == Presence::kLost) {
      for (std::size_t other = 0; other < size(); ++other) {
        if (other != rank && presence_[other] == Presence::kHere) {
          bells_[other].ring(reason);
        }
      }
    }
    changed_.notify_all();
  }

 private:
  Status give_up(Status status) STRETTO_REQUIRES(mutex_) {
    if (broken_.is_ok()) {
      broken_ = std::move(status);
    }
    changed_.notify_all();
    return broken_;
  }

  Result<std::vector<spi::Bytes>> wait_for_others(std::size_t rank,
                                                  std::string_view what,
                                                  Deadline deadline) STRETTO_REQUIRES(mutex_) {
    while (true) {
      if (results_[rank] != nullptr) {
        return *std::exchange(results_[rank], nullptr);
      }
      if (!broken_.is_ok()) {
        return fail(broken_);
      }
      STRETTO_TRY(bells_[rank].health());
      for (const std::size_t other : round_.missing()) {
        if (presence_[other] == Presence::kLeft) {
          return fail(StatusCode::kPeerLost,
                      "rank " + std::to_string(other) +
                          " has left the group and takes no part in the all_gather for '" +
                          std::string(what) + "'");
        }
      }
      if (deadline.passed()) {
        return fail(give_up({StatusCode::kDeadlineExceeded,
                             "rank " + std::to_string(rank) + " waited in the all_gather for '" +
                                 std::string(what) + "' until its deadline, but " +
                                 rendezvous::name_ranks(round_.missing()) + " did not call"}));
      }
      changed_.wait_until(mutex_, deadline.when());
    }
  }

  std::vector<HealthBell> bells_;
  Mutex mutex_;
  ConditionVariable changed_;
  GatherRound round_ STRETTO_GUARDED_BY(mutex_);
  std::vector<Presence> presence_ STRETTO_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> sequences_ STRETTO_GUARDED_BY(mutex_);
  // Shared by the ranks that have not yet fetched the same result.
  std::vector<std::shared_ptr<const std::vector<spi::Bytes>>> results_ STRETTO_GUARDED_BY(mutex_);
  Status broken_ STRETTO_GUARDED_BY(mutex_);  // after one failed gather ranks are out of step
};

/// One rank's view of a Meeting.
///
/// Threading: thread-safe.
class InProcessGroup final : public Group, public spi::ControlPlane {
 public:
  InProcessGroup(std::shared_ptr<Meeting> meeting, GroupOptions options)
      : meeting_(std::move(meeting)), options_(std::move(options)) {}
  ~InProcessGroup() override {
    meeting_->depart(options_.rank,
                     Presence::kLost,
                     {StatusCode::kPeerLost,
                      "rank " + std::to_string(options_.rank) +
                          " was lost: it ended without leaving the group"});
  }

  Rank rank() const noexcept override { return Rank{static_cast<std::uint32_t>(options_.rank)}; }
  std::size_t size() const noexcept override { return options_.size; }
  std::size_t local_rank() const noexcept override { return options_.local_rank; }
  std::size_t local_size() const noexcept override { return options_.local_size; }
  const GroupOptions& options() const noexcept override { return options_; }
  bool is_in_process() const noexcept override { return true; }
  spi::ControlPlane& control() noexcept override { return *this; }

  Result<std::vector<spi::Bytes>> all_gather(std::string_view what,
                                             std::span<const std::byte> mine,
                                             Deadline deadline) override {
    return meeting_->gather(options_.rank, what, mine, deadline);
  }
  Status health() const override { return meeting_->bell(options_.rank).health(); }
  int descriptor() const noexcept override { return meeting_->bell(options_.rank).descriptor(); }
  void abort(const Status& reason) noexcept override {
    meeting_->depart(
        options_.rank,
        Presence::kLost,
        {StatusCode::kPeerLost,
         "rank " + std::to_string(options_.rank) + " gave up: " + std::string(reason.message())});
  }
  void leave() noexcept override { meeting_->depart(options_.rank, Presence::kLeft, {}); }

 private:
  std::shared_ptr<Meeting> meeting_;  // shared by all ranks of the group
  GroupOptions options_;
};

std::shared_ptr<Meeting> make_meeting(std::size_t size) {
  std::vector<HealthBell> bells;
  bells.reserve(size);
  for (std::size_t rank = 0; rank < size; ++rank) {
    auto bell = HealthBell::make();
    STRETTO_CHECK(bell.has_value() && "open files ran out");
    bells.push_back(std::move(*bell));
  }
  return std::make_shared<Meeting>(size, std::move(bells));
}

}  // namespace

std::vector<std::shared_ptr<Group>> Group::in_process(std::size_t size) {
  const auto meeting = make_meeting(size);
  std::vector<std::shared_ptr<Group>> groups;
  for (std::size_t rank = 0; rank < size; ++rank) {
    GroupOptions options;
    options.rank = rank;
    options.size = size;
    options.local_rank = rank;
    options.local_size = size;
    groups.push_back(std::make_shared<InProcessGroup>(meeting, std::move(options)));
  }
  return groups;
}

std::shared_ptr<Group> rendezvous::make_group_of_one(const GroupOptions& options) {
  return std::make_shared<InProcessGroup>(make_meeting(1), options);
}

}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/mutex.hpp"
#include "rendezvous/gather_round.hpp"

#include "stretto/group.hpp"
#include "stretto/options.hpp"
#include "stretto/spi/control.hpp"
#include "stretto/spi/transport.hpp"
#include "stretto/status.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stretto::collective {

/// Some ranks of a group, as a group of their own, numbered anew.
///
/// Blobs travel between the members over a transport of their own, so that a sub-group needs nobody
/// else.  Who lives is what the whole group's control connections say: a rank that is lost anywhere
/// ends the sub-groups too, for the job has lost it; one that leaves on purpose does not.
///
/// Threading: thread-safe, as Group and ControlPlane ask.
/// Ownership: keeps the group alive that it is part of.
class SubGroup final : public Group, public spi::ControlPlane {
 public:
  /// Parts the ranks of `parent`, which all call it together: those of the same color form a
  /// sub-group, in the order of key, then of rank.  Null without a color.
  ///
  /// Blocking: until all have called, or the group's time-out.
  static Result<std::shared_ptr<SubGroup>> split(std::shared_ptr<Group> parent,
                                                 const EngineOptions& options,
                                                 std::optional<std::uint32_t> color,
                                                 std::int64_t key);

  /// The members, by their numbers in the whole group.
  const std::vector<std::size_t>& members() const noexcept { return members_; }

  Rank rank() const noexcept override { return Rank{static_cast<std::uint32_t>(options_.rank)}; }
  std::size_t size() const noexcept override { return options_.size; }
  std::size_t local_rank() const noexcept override { return options_.local_rank; }
  std::size_t local_size() const noexcept override { return options_.local_size; }
  const GroupOptions& options() const noexcept override { return options_; }
  bool is_in_process() const noexcept override { return parent_->is_in_process(); }
  spi::ControlPlane& control() noexcept override { return *this; }

  Result<std::vector<spi::Bytes>> all_gather(std::string_view what,
                                             std::span<const std::byte> mine,
                                             Deadline deadline) override;
  Status health() const override;
  int descriptor() const noexcept override { return parent_->control().descriptor(); }
  void abort(const Status& reason) noexcept override { parent_->control().abort(reason); }
  void leave() noexcept override { left_.store(true, std::memory_order_relaxed); }

 private:
  /// Messages with one member.
  struct Member {
    std::size_t mesh_rank = 0;  ///< its number in the parent
    std::deque<spi::TransportEvent> announced;
    spi::Bytes incoming;
    bool sent = false;  ///< this round's blob, by this rank
    bool announced_to = false;
    bool lost = false;
  };

  SubGroup(std::shared_ptr<Group> parent,
           GroupOptions options,
           std::vector<std::size_t> in_parent,
           std::unique_ptr<spi::Transport> mesh);

  Result<std::vector<spi::Bytes>> gather(std::string_view what,
                                         std::span<const std::byte> mine,
                                         Deadline deadline) STRETTO_REQUIRES(mutex_);
  Status announce() STRETTO_REQUIRES(mutex_);
  Result<bool> take_events() STRETTO_REQUIRES(mutex_);
  Status accept(std::size_t member) STRETTO_REQUIRES(mutex_);
  Status take_blob(std::size_t member) STRETTO_REQUIRES(mutex_);
  Status check_waiting(std::string_view what, Deadline deadline) STRETTO_REQUIRES(mutex_);
  bool complete() STRETTO_REQUIRES(mutex_);
  void sleep(Deadline deadline) STRETTO_REQUIRES(mutex_);

  std::shared_ptr<Group> parent_;  // shared with the communicator that was split
  const GroupOptions options_;
  std::vector<std::size_t> members_;
  bool nested_ = false;  ///< the parent is a sub-group itself
  std::atomic<bool> left_{false};
  Mutex mutex_;
  // Members may use the memory of both until the mesh goes.
  spi::Bytes outgoing_ STRETTO_GUARDED_BY(mutex_);
  std::vector<Member> peers_ STRETTO_GUARDED_BY(mutex_);             ///< by rank
  std::unique_ptr<spi::Transport> mesh_ STRETTO_GUARDED_BY(mutex_);  ///< of all the parent's ranks
  rendezvous::GatherRound round_ STRETTO_GUARDED_BY(mutex_);
  std::uint64_t sequence_ STRETTO_GUARDED_BY(mutex_) = 0;
  Status broken_ STRETTO_GUARDED_BY(mutex_);  // after one failed gather ranks are out of step
};

/// The ranks of a group by their numbers in the whole group; empty if it is the whole group.
std::vector<std::size_t> members_of(const Group& group);

}  // namespace stretto::collective

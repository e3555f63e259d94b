// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/gather_round.hpp"
#include "rendezvous/star_plane.hpp"

#include <optional>
#include <set>

namespace stretto::rendezvous {

/// Rank 0's side: lets the ranks in, turns strangers away, collects and spreads blobs, and tells
/// everyone who was lost.
///
/// Threading: as StarPlane.
class Hub final : public StarPlane {
 public:
  /// Takes over the listening socket.
  static Result<std::unique_ptr<Hub>> make(const GroupOptions& options,
                                           FileDescriptor listener,
                                           Deadline deadline);
  ~Hub() override { stop(Desk::Goodbye::kSkip); }

 private:
  enum class Presence { kAbsent, kHere, kLeft, kLost };
  struct Member {
    Connection* connection = nullptr;
    Presence presence = Presence::kAbsent;
  };
  struct Guest {
    Nonce nonce{};
    TimePoint since;
  };

  Hub(GroupOptions options, Parts parts, FileDescriptor listener, Deadline deadline);

  void on_accept() override;
  void on_frame(Connection& connection, const Frame& frame) override;
  void on_end(Connection& connection, const std::string& how) override;
  void on_turn(TimePoint now) override;
  void on_gather(GatherCall call) override;
  void on_ask_missing(std::uint64_t sequence) override;
  void on_abort(const std::string& text) override;
  void on_goodbye() override;

  void make_room_for_guest();
  void greet(Connection& connection, const Frame& frame);
  /// Why this hello is not let in; empty if it is.
  std::string objection(const Hello& hello, const Nonce& nonce) const;
  void let_in(Connection& connection, const Hello& hello, const Nonce& nonce);
  void refuse(Connection& connection, const std::string& why);
  void serve_member(std::size_t rank, Connection& connection, const Frame& frame);
  void take_blob(std::size_t rank, GatherCall call);
  void check_round();
  void break_round(const Status& status);
  void lose(std::size_t rank, const Status& status);
  void part(std::size_t rank);
  void broadcast(const SharedFrame& frame);
  /// Tells all ranks, those too that are let in later.
  void spread(SharedFrame bad_news);
  void tend_joining(TimePoint now);
  void stop_joining(const Status& why);
  Status late_ranks() const;
  void tend_members(TimePoint now);
  std::vector<std::size_t> absent() const;
  std::optional<std::size_t> rank_of(const Connection& connection) const;

  FileDescriptor listener_;
  const Deadline join_deadline_;
  const TimePoint began_ = Clock::now();
  const std::uint64_t job_;
  std::vector<Member> members_;  // by rank; rank 0 is here without a connection
  std::unordered_map<const Connection*, Guest> guests_;
  std::unordered_map<const Connection*, std::size_t> ranks_;
  bool complete_ = false;
  bool failed_ = false;
  std::string why_failed_;
  SharedFrame bad_news_;  // the first; a rank that is let in after it hears it at once
  std::string last_refusal_;
  std::uint64_t logged_refusals_ = 0;
  GatherRound round_;
  std::optional<Gathered> leaving_;  // a finished round whose frames are not all sent
  TimePoint next_beat_ = Clock::now();
  TimePoint accept_again_ = TimePoint::min();
  bool listening_ = true;
};

}  // namespace stretto::rendezvous

// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/hub.hpp"

#include "base/fault_point.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "rendezvous/launcher_news.hpp"
#include "rendezvous/words.hpp"

#include <algorithm>
#include <cerrno>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

namespace stretto::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Connections that have not yet said who they are; more than these push the oldest out.
constexpr std::size_t kMostGuests = 64;
constexpr seconds kGreetingTime{5};
/// Lines about refusals; further ones are only counted.
constexpr std::uint64_t kMostLoggedRefusals = 20;

}  // namespace

Result<std::unique_ptr<Hub>> Hub::make(const GroupOptions& options,
                                       FileDescriptor listener,
                                       Deadline deadline) {
  STRETTO_TRY_ASSIGN(Parts parts, make_parts());
  std::unique_ptr<Hub> hub(new Hub(options, std::move(parts), std::move(listener), deadline));
  hub->start();
  return hub;
}

Hub::Hub(GroupOptions options, Parts parts, FileDescriptor listener, Deadline deadline)
    : StarPlane(std::move(options), std::move(parts)),
      listener_(std::move(listener)),
      join_deadline_(deadline),
      job_(hash_bytes(make_nonce())),
      members_(options_.size),
      round_(options_.size) {
  members_[0].presence = Presence::kHere;
  watch(listener_.get(), kListenerKey, EPOLLIN);
}

// Joining.

void Hub::on_accept() {
  for (int i = 0; i < 64; ++i) {
    FileDescriptor socket(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        // The waiting connection would wake this thread again at once, for nothing.
        unwatch(listener_.get());
        listening_ = false;
        accept_again_ = Clock::now() + milliseconds(100);
      }
      return;
    }
    const int on = 1;
    static_cast<void>(::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    make_room_for_guest();
    Connection& connection = adopt(std::make_unique<Connection>(std::move(socket)));
    Guest guest{make_nonce(), Clock::now()};
    send(connection, encode(Challenge{kWireVersion, guest.nonce}));
    guests_[&connection] = guest;
  }
}

void Hub::make_room_for_guest() {
  if (guests_.size() < std::max(kMostGuests, 2 * options_.size)) {
    return;
  }
  const auto oldest = std::min_element(guests_.begin(), guests_.end(), [](auto& a, auto& b) {
    return a.second.since < b.second.since;
  });
  for (auto& [key, connection] : connections_) {
    if (connection.get() == oldest->first) {
      refuse(*connection, "too many connections that do not say who they are");
      return;
    }
  }
}

void Hub::refuse(Connection& connection, const std::string& why) {
  count_refused();
  last_refusal_ = why;
  if (logged_refusals_++ < kMostLoggedRefusals) {
    log(LogLevel::kWarning, "rank 0 refused a connection: " + why);
  }
  send(connection, encode(FrameKind::kRefused, Notice{0, why}));
  guests_.erase(&connection);
  drop(connection);
}

std::string Hub::objection(const Hello& hello, const Nonce& nonce) const {
  const std::string who = "rank " + std::to_string(hello.rank);
  if (hello.version != kWireVersion) {
    return who + " speaks version " + std::to_string(hello.version) +
           " of Stretto's control messages, rank 0 version " + std::to_string(kWireVersion) +
           "; install the same Stretto on all hosts";
  }
  if (hello.proof !=
      prove_token(options_.token, Prover::kJoiner, nonce, hello.nonce, hello.rank, hello.size)) {
    return who +
           " has another token than rank 0; set STRETTO_TOKEN to the same value for all ranks "
           "of a job (or this is a rank of another job)";
  }
  if (hello.size != options_.size) {
    return who + " has WORLD_SIZE=" + std::to_string(hello.size) +
           ", rank 0 has WORLD_SIZE=" + std::to_string(options_.size) + "; they must be the same";
  }
  if (hello.rank >= options_.size || members_[hello.rank].presence != Presence::kAbsent) {
    return who + " is in this group already; give each process a RANK of its own";
  }
  return failed_ ? "rank 0 has stopped waiting for ranks: " + why_failed_ : "";
}

void Hub::greet(Connection& connection, const Frame& frame) {
  fault_point("rendezvous.before_hello", 0);
  const auto hello = frame.kind == FrameKind::kHello ? decode_hello(frame.body) : std::nullopt;
  if (!hello) {
    refuse(connection, "a stranger sent bytes that are no greeting");
    return;
  }
  const Nonce nonce = guests_[&connection].nonce;
  if (const std::string why = objection(*hello, nonce); !why.empty()) {
    refuse(connection, why);
    return;
  }
  let_in(connection, *hello, nonce);
}

void Hub::let_in(Connection& connection, const Hello& hello, const Nonce& nonce) {
  guests_.erase(&connection);
  members_[hello.rank] = {&connection, Presence::kHere};
  ranks_[&connection] = hello.rank;
  connection.reader().set_most_body_bytes(kMostGatheredBytes + 4096);
  Accepted accepted;
  accepted.proof =
      prove_token(options_.token, Prover::kRankZero, nonce, hello.nonce, hello.rank, hello.size);
  accepted.job = job_;
  accepted.dead_after_ms = static_cast<std::uint32_t>(dead_after_.count());
  send(connection, encode(accepted));
  fault_point("rendezvous.after_hello", 0);
  if (bad_news_ != nullptr) {
    send(connection, bad_news_);  // who is gone is not absent, and yet the group is not complete
    return;
  }
  const auto missing = absent();
  if (!missing.empty()) {
    send(connection, encode(FrameKind::kHeartbeat, Notice{0, name_ranks(missing)}));
    return;
  }
  complete_ = true;
  broadcast(encode(FrameKind::kComplete));
  desk_.joined();
}

std::vector<std::size_t> Hub::absent() const {
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].presence == Presence::kAbsent) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

void Hub::tend_joining(TimePoint now) {
  std::vector<Connection*> late;
  for (auto& [key, connection] : connections_) {
    const auto guest = guests_.find(connection.get());
    if (guest != guests_.end() && now - guest->second.since > kGreetingTime) {
      late.push_back(connection.get());
    }
  }
  for (Connection* connection : late) {
    refuse(*connection, "a stranger said nothing for 5 s");
  }
  if (!listening_ && now >= accept_again_) {
    listening_ = watch(listener_.get(), kListenerKey, EPOLLIN);
  }
  if (complete_ || failed_) {
    return;
  }
  if (const Status news = launcher_news(); !news.is_ok()) {
    stop_joining(news);
  } else if (now >= join_deadline_.when()) {
    stop_joining(late_ranks());
  }
}

void Hub::stop_joining(const Status& why) {
  failed_ = true;
  why_failed_ = why.message();
  break_round(why);
}

Status Hub::late_ranks() const {
  std::string text = "rank 0 waited " + name_duration(options_.timeout) + " for " +
                     name_ranks(absent()) + " of " + std::to_string(options_.size) +
                     "; start what is missing, check that MASTER_ADDR and MASTER_PORT are the "
                     "same everywhere, or raise STRETTO_TIMEOUT";
  if (refused() > 0) {
    text += " (refused so far: " + std::to_string(refused()) + ", the last because " +
            last_refusal_ + ")";
  }
  return {StatusCode::kDeadlineExceeded, text};
}

// Frames.

std::optional<std::size_t> Hub::rank_of(const Connection& connection) const {
  const auto found = ranks_.find(&connection);
  return found == ranks_.end() ? std::nullopt : std::optional(found->second);
}

void Hub::on_frame(Connection& connection, const Frame& frame) {
  if (const auto rank = rank_of(connection)) {
    serve_member(*rank, connection, frame);
  } else if (guests_.contains(&connection)) {
    greet(connection, frame);
  }
}

void Hub::on_end(Connection& connection, const std::string& how) {
  if (const auto rank = rank_of(connection)) {
    ranks_.erase(&connection);
    members_[*rank].connection = nullptr;
    lose(*rank, lost_status(*rank, how));
  } else if (guests_.contains(&connection)) {
    refuse(connection, "a stranger's greeting failed: " + how);
  }
}

void Hub::serve_member(std::size_t rank, Connection& connection, const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kHeartbeat:
      return;
    case FrameKind::kBye:
      part(rank);
      return;
    case FrameKind::kAbort:
      if (const auto notice = decode_notice(frame.body)) {
        lose(rank,
             {StatusCode::kPeerLost, "rank " + std::to_string(rank) + " gave up: " + notice->text});
        return;
      }
      break;
    case FrameKind::kGather:
      if (auto call = decode_gather_call(frame.body)) {
        take_blob(rank, std::move(*call));
        return;
      }
      break;
    case FrameKind::kAskMissing:
      if (const auto notice = decode_notice(frame.body)) {
        const bool open = round_.open() && round_.sequence() == notice->number;
        send(connection,
             encode(FrameKind::kMissing,
                    Notice{notice->number,
                           open ? name_ranks(round_.missing()) : std::string("some ranks")}));
        return;
      }
      break;
    default:
      break;
  }
  on_end(connection, "it sent a control message that makes no sense here");
  drop(connection);
}

// Members.

void Hub::broadcast(const SharedFrame& frame) {
  for (const Member& member : members_) {
    if (member.connection != nullptr) {
      send(*member.connection, frame);
    }
  }
}

void Hub::spread(SharedFrame bad_news) {
  broadcast(bad_news);
  if (bad_news_ == nullptr) {
    bad_news_ = std::move(bad_news);
  }
}

void Hub::lose(std::size_t rank, const Status& status) {
  if (members_[rank].presence != Presence::kHere) {
    return;
  }
  members_[rank].presence = Presence::kLost;
  // The others are told before this rank's own threads, which may end the process.
  spread(encode(FrameKind::kLost, Notice{rank, std::string(status.message())}));
  desk_.lost(status);
}

void Hub::part(std::size_t rank) {
  Connection* connection = members_[rank].connection;
  members_[rank] = {nullptr, Presence::kLeft};
  ranks_.erase(connection);
  drop(*connection);
  if (!complete_) {
    break_round({StatusCode::kPeerLost,
                 "rank " + std::to_string(rank) + " left before all ranks were there"});
  }
  check_round();
}

void Hub::tend_members(TimePoint now) {
  for (std::size_t rank = 1; rank < members_.size(); ++rank) {
    Connection* connection = members_[rank].connection;
    if (connection != nullptr && members_[rank].presence == Presence::kHere &&
        now - connection->heard() > dead_after_) {
      lose(rank,
           lost_status(rank,
                       "it has been silent for more than " + name_duration(dead_after_) +
                           " (is it stopped, or its host or link down?)"));
    }
  }
  if (now >= next_beat_) {
    next_beat_ = now + beat_;
    const auto missing = absent();
    broadcast(missing.empty() ? encode(FrameKind::kHeartbeat, Notice{})
                              : encode(FrameKind::kHeartbeat, Notice{0, name_ranks(missing)}));
  }
}

// Gathering.

void Hub::take_blob(std::size_t rank, GatherCall call) {
  if (Status added = round_.add(rank, call.sequence, call.what, std::move(call.blob));
      !added.is_ok()) {
    break_round(added);
    return;
  }
  check_round();
}

void Hub::check_round() {
  if (!round_.open()) {
    return;
  }
  if (round_.complete()) {
    Gathered gathered{round_.sequence(), round_.take()};
    broadcast(encode(gathered.sequence, gathered.blobs));
    leaving_ = std::move(gathered);
    return;
  }
  for (const std::size_t rank : round_.missing()) {
    if (members_[rank].presence == Presence::kLeft) {
      break_round({StatusCode::kPeerLost,
                   "rank " + std::to_string(rank) +
                       " has left the group and takes no part in the all_gather for '" +
                       round_.what() + "'"});
      return;
    }
  }
}

void Hub::break_round(const Status& status) {
  spread(encode(FrameKind::kBroken,
                Notice{static_cast<std::uint64_t>(status.code()), std::string(status.message())}));
  desk_.broken(status);
}

void Hub::on_gather(GatherCall call) {
  take_blob(0, std::move(call));
}

void Hub::on_ask_missing(std::uint64_t sequence) {
  const auto missing = round_.missing();
  desk_.still_missing(
      sequence,
      round_.open() && !missing.empty() ? name_ranks(missing) : std::string("some ranks"));
}

void Hub::on_abort(const std::string& text) {
  broadcast(encode(FrameKind::kLost, Notice{0, "rank 0 gave up: " + text}));
}

void Hub::on_goodbye() {
  broadcast(encode(FrameKind::kBye));
  for (auto& [key, connection] : connections_) {
    if (guests_.contains(connection.get())) {
      drop(*connection);
    }
  }
  listener_.reset();
}

void Hub::on_turn(TimePoint now) {
  tend_joining(now);
  tend_members(now);
  // Rank 0 may leave or end right after its gather: not before the others' results are on the way.
  if (leaving_ && std::none_of(members_.begin(), members_.end(), [](const Member& member) {
        return member.presence == Presence::kHere && member.connection != nullptr &&
               member.connection->wants_out();
      })) {
    desk_.gathered(leaving_->sequence, std::move(leaving_->blobs));
    leaving_.reset();
  }
}

}  // namespace stretto::rendezvous

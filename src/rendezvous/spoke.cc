// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/spoke.hpp"

#include "base/fault_point.hpp"
#include "base/log.hpp"
#include "rendezvous/gather_round.hpp"
#include "rendezvous/launcher_news.hpp"
#include "rendezvous/socket.hpp"
#include "rendezvous/words.hpp"

#include <algorithm>

#include <poll.h>

namespace stretto::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Greeted {
  std::unique_ptr<Connection> connection;
  Accepted accepted;
};

std::string endpoint(const GroupOptions& options) {
  return options.master_address + ":" + std::to_string(options.master_port);
}

/// Errors: kUnavailable, try again; everything else is final.
Result<Greeted> greet(const GroupOptions& options, FileDescriptor socket, Deadline deadline) {
  auto connection = std::make_unique<Connection>(std::move(socket));
  // A stranger may hold the port and say nothing, while rank 0 has long given up.
  constexpr milliseconds kBetweenNews{100};
  while (!deadline.passed() &&
         !wait_ready(connection->descriptor(), Direction::kIn, Deadline::after(kBetweenNews))) {
    STRETTO_TRY(launcher_news());
  }
  STRETTO_TRY_ASSIGN(Frame frame, connection->receive_blocking(deadline));
  if (const auto refusal = decode_notice(frame.body);
      frame.kind == FrameKind::kRefused && refusal) {
    return fail(StatusCode::kUnavailable, refusal->text);  // it was busy; there is no verdict yet
  }
  const auto challenge = decode_challenge(frame.body);
  if (frame.kind != FrameKind::kChallenge || !challenge) {
    return fail(StatusCode::kUnavailable, "something answers there that is not rank 0");
  }
  Hello hello;
  hello.rank = static_cast<std::uint32_t>(options.rank);
  hello.size = static_cast<std::uint32_t>(options.size);
  hello.nonce = make_nonce();
  hello.proof = prove_token(
      options.token, Prover::kJoiner, challenge->nonce, hello.nonce, hello.rank, hello.size);
  fault_point("rendezvous.before_hello", options.rank);
  STRETTO_TRY(connection->send_blocking(encode(hello), deadline));
  fault_point("rendezvous.after_hello", options.rank);
  STRETTO_TRY_ASSIGN(frame, connection->receive_blocking(deadline));
  if (frame.kind == FrameKind::kRefused) {
    const auto refusal = decode_notice(frame.body);
    return fail(StatusCode::kInvalidArgument,
                "rank 0 at " + endpoint(options) + " refused rank " + std::to_string(options.rank) +
                    ": " + (refusal ? refusal->text : std::string("it did not say why")));
  }
  const auto accepted = decode_accepted(frame.body);
  if (frame.kind != FrameKind::kAccepted || !accepted ||
      accepted->proof != prove_token(options.token,
                                     Prover::kRankZero,
                                     challenge->nonce,
                                     hello.nonce,
                                     hello.rank,
                                     hello.size)) {
    return fail(StatusCode::kInvalidArgument,
                "what listens at " + endpoint(options) +
                    " does not know this job's token; check MASTER_ADDR, MASTER_PORT and "
                    "STRETTO_TOKEN");
  }
  return Greeted{std::move(connection), *accepted};
}

Result<Greeted> attempt(const GroupOptions& options, Deadline deadline) {
  STRETTO_TRY_ASSIGN(const auto addresses,
                     resolve(options.master_address, options.master_port, deadline));
  Status last(StatusCode::kUnavailable, "the name has no address");
  for (const auto& address : addresses) {
    const Deadline soon(std::min(deadline.when(), Clock::now() + seconds(5)));
    auto socket = connect_to(address, soon);
    if (!socket) {
      last = socket.error();
      continue;
    }
    auto greeted = greet(options, std::move(*socket), soon);
    if (greeted || greeted.error().code() != StatusCode::kUnavailable) {
      return greeted;
    }
    last = greeted.error();
  }
  return fail(last);
}

}  // namespace

Result<std::unique_ptr<Spoke>> Spoke::make(const GroupOptions& options, Deadline deadline) {
  STRETTO_TRY_ASSIGN(Parts parts, make_parts());
  // A name that does not resolve will not do so in a minute either.
  STRETTO_TRY(resolve(options.master_address, options.master_port, deadline));
  while (true) {
    auto greeted = attempt(options, deadline);
    if (greeted) {
      return begin(options, std::move(parts), std::move(greeted->connection), greeted->accepted);
    }
    const Status& why = greeted.error();
    if (why.code() == StatusCode::kInvalidArgument) {
      log(LogLevel::kError, why.message());
      return fail(why);
    }
    STRETTO_TRY(launcher_news());
    if (deadline.passed()) {
      return fail(StatusCode::kDeadlineExceeded,
                  "rank " + std::to_string(options.rank) + " waited " +
                      name_duration(options.timeout) + " for rank 0 at " + endpoint(options) +
                      " (" + std::string(why.message()) +
                      "); start rank 0, and check that MASTER_ADDR and MASTER_PORT are the same "
                      "everywhere and that no firewall is between");
    }
    const auto pause = std::min<std::chrono::nanoseconds>(milliseconds(50), deadline.left());
    static_cast<void>(
        ::poll(nullptr, 0, static_cast<int>(std::chrono::ceil<milliseconds>(pause).count())));
  }
}

Result<std::unique_ptr<Spoke>> Spoke::take_over(const GroupOptions& options,
                                                std::unique_ptr<Connection> connection,
                                                const Accepted& accepted) {
  STRETTO_TRY_ASSIGN(Parts parts, make_parts());
  return begin(options, std::move(parts), std::move(connection), accepted);
}

std::unique_ptr<Spoke> Spoke::begin(const GroupOptions& options,
                                    Parts parts,
                                    std::unique_ptr<Connection> connection,
                                    const Accepted& accepted) {
  std::unique_ptr<Spoke> spoke(
      new Spoke(options, std::move(parts), std::move(connection), accepted));
  spoke->start();
  return spoke;
}

Spoke::Spoke(GroupOptions options,
             Parts parts,
             std::unique_ptr<Connection> connection,
             const Accepted& accepted)
    : StarPlane(std::move(options), std::move(parts)) {
  // Rank 0 decides how long silence may last, so that all ranks send heartbeats often enough.
  dead_after_ =
      std::clamp(milliseconds(accepted.dead_after_ms), milliseconds(10), milliseconds(600'000));
  connection->reader().set_most_body_bytes(kMostGatheredBytes + 32 * kMostRanks);
  connection->set_heard(Clock::now());
  hub_ = &adopt(std::move(connection));
}

void Spoke::tell(SharedFrame frame) {
  if (hub_ != nullptr) {
    send(*hub_, std::move(frame));
  }
}

void Spoke::on_frame(Connection& connection, const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kComplete:
      desk_.joined();
      return;
    case FrameKind::kBye:
      hub_ = nullptr;
      drop(connection);
      desk_.broken(
          {StatusCode::kPeerLost, "rank 0 has left the group; without it there is no all_gather"});
      return;
    case FrameKind::kGathered:
      if (auto gathered = decode_gathered(frame.body);
          gathered && gathered->blobs.size() == options_.size) {
        desk_.gathered(gathered->sequence, std::move(gathered->blobs));
        return;
      }
      break;
    default:
      if (const auto notice = decode_notice(frame.body)) {
        on_notice(frame.kind, *notice);
        return;
      }
      break;
  }
  on_end(connection, "it sent a control message that makes no sense here");
  drop(connection);
}

void Spoke::on_notice(FrameKind kind, const Notice& notice) {
  switch (kind) {
    case FrameKind::kHeartbeat:
      desk_.awaiting(notice.text);
      return;
    case FrameKind::kLost:
      if (notice.number == options_.rank && gave_up_) {
        return;  // this rank's own news
      }
      desk_.lost({StatusCode::kPeerLost, notice.text});
      return;
    case FrameKind::kMissing:
      desk_.still_missing(notice.number, notice.text);
      return;
    case FrameKind::kBroken: {
      const bool known =
          notice.number > 0 && notice.number <= static_cast<std::uint64_t>(StatusCode::kInternal);
      desk_.broken(
          {known ? static_cast<StatusCode>(notice.number) : StatusCode::kAborted, notice.text});
      return;
    }
    default:
      return;
  }
}

void Spoke::on_end(Connection& connection, const std::string& how) {
  if (&connection == hub_) {
    hub_ = nullptr;
    desk_.lost(lost_status(0, how));
  }
}

void Spoke::on_turn(TimePoint now) {
  if (hub_ == nullptr) {
    return;
  }
  if (now - hub_->heard() > dead_after_) {
    Connection& silent = *hub_;
    on_end(silent,
           "it has been silent for more than " + name_duration(dead_after_) +
               " (is it stopped, or its host or link down?)");
    drop(silent);
    return;
  }
  if (now >= next_beat_) {
    next_beat_ = now + beat_;
    tell(encode(FrameKind::kHeartbeat, Notice{}));
  }
}

void Spoke::on_gather(GatherCall call) {
  tell(encode(call));
}

void Spoke::on_ask_missing(std::uint64_t sequence) {
  tell(encode(FrameKind::kAskMissing, Notice{sequence, {}}));
}

void Spoke::on_abort(const std::string& text) {
  gave_up_ = true;
  tell(encode(FrameKind::kAbort, Notice{options_.rank, text}));
}

void Spoke::on_goodbye() {
  tell(encode(FrameKind::kBye));
}

}  // namespace stretto::rendezvous

// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/mesh.hpp"

#include "base/fault_point.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/random.h>
#include <sys/socket.h>

namespace stretto::transport {
namespace {

constexpr std::chrono::milliseconds kRetryAfter{50};
// How often the control connections are asked whether everybody still lives.
constexpr std::chrono::milliseconds kHealthEvery{100};

std::string rank_text(Rank rank) {
  return "rank " + std::to_string(index_of(rank));
}

std::uint64_t random_nonce() {
  std::uint64_t nonce = 0;
  if (::getrandom(&nonce, sizeof nonce, 0) != static_cast<ssize_t>(sizeof nonce)) {
    nonce = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
  }
  return nonce;
}

}  // namespace

Mesh::Mesh(const Listener& listener,
           const Identity& identity,
           const std::vector<SocketAddress>& addresses,
           const MeshOptions& options)
    : listener_(listener),
      identity_(identity),
      addresses_(addresses),
      options_(options),
      sockets_(identity.size),
      troubles_(identity.size) {}

std::size_t Mesh::missing() const noexcept {
  const auto open = std::count_if(
      sockets_.begin(), sockets_.end(), [](const auto& socket) { return socket.is_open(); });
  return identity_.size - 1 - static_cast<std::size_t>(open);
}

Result<std::vector<FileDescriptor>> Mesh::connect(const spi::ControlPlane& control,
                                                  Deadline deadline) {
  fault_point("transport.connect", index_of(identity_.rank));
  for (std::size_t peer = 0; peer < index_of(identity_.rank); ++peer) {
    const Rank rank{static_cast<std::uint32_t>(peer)};
    attempts_.push_back({.handshake = Handshake::connector(identity_, rank, random_nonce()),
                         .from = addresses_[peer].to_string(),
                         .outgoing = true});
    start(attempts_.back());
  }
  while (missing() > 0) {
    STRETTO_TRY(control.health());
    STRETTO_TRY(fatal_);
    if (deadline.passed()) {
      return fail(timed_out());
    }
    turn(deadline);
  }
  // A last refusal may be unsent; it was a courtesy.
  return std::move(sockets_);
}

int Mesh::turn_timeout_ms(Deadline deadline) const {
  TimePoint until = std::min(deadline.when(), Clock::now() + kHealthEvery);
  for (const Attempt& attempt : attempts_) {
    until = std::min(until, attempt.due);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
}

void Mesh::turn(Deadline deadline) {
  watched_.clear();
  watched_.push_back({listener_.descriptor(), POLLIN, 0});
  for (const Attempt& attempt : attempts_) {
    const bool writes = attempt.connecting || !attempt.handshake.output().empty();
    watched_.push_back(
        {attempt.socket.get(), static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
  }
  if (::poll(watched_.data(), watched_.size(), turn_timeout_ms(deadline)) > 0) {
    for (std::size_t i = 0; i + 1 < watched_.size(); ++i) {
      if (watched_[i + 1].revents != 0) {
        advance(attempts_[i], watched_[i + 1].revents);
      }
    }
  }
  expire();
  std::erase_if(attempts_, [](const Attempt& attempt) { return attempt.over; });
  if (watched_[0].revents != 0) {
    accept_all();
  }
}

void Mesh::start(Attempt& attempt) {
  const Rank peer = attempt.handshake.peer();
  const SocketAddress& address = addresses_[index_of(peer)];
  attempt.handshake = Handshake::connector(identity_, peer, random_nonce());
  attempt.due = Clock::now() + options_.handshake_timeout;
  attempt.socket =
      FileDescriptor(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!attempt.socket.is_open()) {
    retry(attempt, std::strerror(errno));
    return;
  }
  if (const Status status = prepare_socket(attempt.socket.get(), options_.socket);
      !status.is_ok()) {
    fatal_ = status;
    return;
  }
  attempt.connecting = true;
  if (::connect(attempt.socket.get(), address.data(), address.size()) != 0 &&
      errno != EINPROGRESS) {
    retry(attempt, std::strerror(errno));
  }
}

void Mesh::retry(Attempt& attempt, std::string why) {
  troubles_[index_of(attempt.handshake.peer())] = std::move(why);
  attempt.socket.reset();
  attempt.connecting = false;
  attempt.due = Clock::now() + kRetryAfter;
}

void Mesh::accept_all() {
  for (;;) {
    std::string from;
    FileDescriptor socket = listener_.accept(from);
    if (!socket.is_open()) {
      return;
    }
    make_room();
    if (const Status status = prepare_socket(socket.get(), options_.socket); !status.is_ok()) {
      fatal_ = status;
      return;
    }
    attempts_.push_back({.handshake = Handshake::acceptor(identity_, random_nonce()),
                         .socket = std::move(socket),
                         .from = std::move(from),
                         .due = Clock::now() + options_.handshake_timeout});
  }
}

/// Pushes out the oldest connection that has not said who it is, if there are too many.
void Mesh::make_room() {
  const std::size_t places = 16 + 2 * identity_.size;
  const auto incoming = [](const Attempt& attempt) { return !attempt.outgoing && !attempt.over; };
  const auto count = std::count_if(attempts_.begin(), attempts_.end(), incoming);
  if (static_cast<std::size_t>(count) >= places) {
    const auto oldest = std::find_if(attempts_.begin(), attempts_.end(), incoming);
    drop(*oldest, "it said nothing while others came");
    attempts_.erase(oldest);
  }
}

void Mesh::advance(Attempt& attempt, short events) {
  if (attempt.connecting && (events & (POLLOUT | POLLERR | POLLHUP)) != 0 &&
      !finish_connecting(attempt)) {
    return;
  }
  if (attempt.connecting || !flush(attempt)) {
    return;
  }
  if ((events & (POLLIN | POLLERR | POLLHUP)) != 0 && !read(attempt)) {
    return;
  }
  if (!flush(attempt)) {
    return;
  }
  if (attempt.handshake.state() != Handshake::State::kTalking) {
    conclude(attempt);
  }
}

bool Mesh::finish_connecting(Attempt& attempt) {
  int error = 0;
  socklen_t size = sizeof error;
  static_cast<void>(::getsockopt(attempt.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size));
  if (error != 0) {
    retry(attempt, std::strerror(error));
    return false;
  }
  attempt.connecting = false;
  // From here on only the deadline or the other side ends it: if this side gave up while a busy
  // peer's welcome is on its way, the peer would be done and listen no more.
  attempt.due = TimePoint::max();
  return true;
}

/// Sends what there is to say.  False if the connection is gone.
bool Mesh::flush(Attempt& attempt) {
  while (!attempt.handshake.output().empty()) {
    const auto output = attempt.handshake.output();
    const ssize_t sent = ::send(attempt.socket.get(), output.data(), output.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return true;
      }
      if (attempt.handshake.state() == Handshake::State::kTalking) {
        return read(attempt);  // its refusal may lie there; else this drops the attempt
      }
      return true;
    }
    attempt.handshake.sent(static_cast<std::size_t>(sent));
  }
  return true;
}

/// Takes what has come.  False if the connection is gone.
bool Mesh::read(Attempt& attempt) {
  while (!attempt.handshake.input().empty()) {
    const auto input = attempt.handshake.input();
    const ssize_t got = ::recv(attempt.socket.get(), input.data(), input.size(), 0);
    if (got > 0) {
      attempt.handshake.received(static_cast<std::size_t>(got));
      continue;
    }
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return true;
    }
    drop(attempt, got == 0 ? "it closed the connection" : std::strerror(errno));
    return false;
  }
  return true;
}

/// The handshake has come to an end, good or bad.
void Mesh::conclude(Attempt& attempt) {
  const Handshake& handshake = attempt.handshake;
  const std::size_t peer = index_of(handshake.peer());
  if (handshake.state() == Handshake::State::kDone) {
    if (sockets_[peer].is_open()) {
      drop(attempt, std::string(to_string(Refusal::kRank)));
      return;
    }
    sockets_[peer] = std::move(attempt.socket);
    attempt.over = true;
    return;
  }
  if (attempt.outgoing) {
    const std::string who = rank_text(handshake.peer()) + " at " + attempt.from;
    const std::string me = rank_text(identity_.rank);
    fatal_ = {StatusCode::kInvalidArgument,
              (handshake.was_refused_by_peer() ? who + " refused " + me : me + " refused " + who) +
                  ": " + std::string(to_string(handshake.refusal())) +
                  "; start all ranks of a job with the same program, token and size"};
  }
  drop(attempt, std::string(to_string(handshake.refusal())));
}

/// Ends an attempt: a rank below is tried again, a stranger is counted.
void Mesh::drop(Attempt& attempt, std::string why) {
  if (attempt.outgoing) {
    retry(attempt, std::move(why));
    return;
  }
  ++refused_;
  last_refusal_ = "the last, from " + attempt.from + ", because " + why;
  attempt.over = true;
}

void Mesh::expire() {
  const TimePoint now = Clock::now();
  for (Attempt& attempt : attempts_) {
    if (attempt.over || now < attempt.due) {
      continue;
    }
    if (!attempt.socket.is_open()) {
      start(attempt);
    } else {
      drop(attempt, attempt.connecting ? "no answer" : "it did not say who it is in time");
    }
  }
}

Status Mesh::timed_out() const {
  std::string text;
  for (std::size_t peer = 0; peer < identity_.size; ++peer) {
    if (peer == index_of(identity_.rank) || sockets_[peer].is_open()) {
      continue;
    }
    text += text.empty() ? "" : "; ";
    text += "rank " + std::to_string(peer);
    if (peer < index_of(identity_.rank)) {
      text += " could not be reached at " + addresses_[peer].to_string() + " (" +
              (troubles_[peer].empty() ? "no answer" : troubles_[peer]) + ")";
    } else {
      text += " has not connected to " + listener_.address().to_string();
    }
  }
  if (refused_ > 0) {
    text += "; " + std::to_string(refused_) + " connections were refused, " + last_refusal_;
  }
  return {StatusCode::kDeadlineExceeded,
          text +
              "; check that the address can be reached from the other hosts, or name another "
              "interface"};
}

}  // namespace stretto::transport

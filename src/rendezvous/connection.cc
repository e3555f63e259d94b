// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/connection.hpp"

#include "rendezvous/socket.hpp"

#include <array>
#include <cerrno>
#include <cstring>

#include <sys/socket.h>

namespace stretto::rendezvous {

void Connection::end(std::string how) {
  if (!ended_) {
    ended_ = std::move(how);
  }
}

void Connection::pump_out() {
  while (wants_out()) {
    const auto& front = *outgoing_.front();
    const ssize_t sent = ::send(socket_.get(),
                                front.data() + sent_of_front_,
                                front.size() - sent_of_front_,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      // A broken pipe is for pump_in to name: the peer's last words may still be unread.
      if (errno != EAGAIN && errno != EINTR) {
        outgoing_.clear();
        sent_of_front_ = 0;
      }
      return;
    }
    sent_of_front_ += static_cast<std::size_t>(sent);
    if (sent_of_front_ == front.size()) {
      outgoing_.pop_front();
      sent_of_front_ = 0;
    }
  }
}

void Connection::finish_sending() noexcept {
  static_cast<void>(::shutdown(socket_.get(), SHUT_WR));
}

void Connection::discard_input() {
  std::array<std::byte, 16384> bytes;
  while (!ended_) {
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
      end("it has taken leave");
    } else if (got < 0 && errno == EAGAIN) {
      return;
    }
  }
}

void Connection::pump_in(TimePoint now) {
  std::array<std::byte, 16384> bytes;
  while (!ended_ && !reader_.full()) {
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      heard_ = now;
      reader_.append(std::span(bytes).first(static_cast<std::size_t>(got)));
    } else if (got == 0) {
      end("its connection was closed without a goodbye (did the process end or get killed?)");
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      end(std::string("its connection broke (") + std::strerror(errno) + ")");
    }
  }
}

Status Connection::send_blocking(SharedFrame frame, Deadline deadline) {
  queue(std::move(frame));
  pump_out();
  while (wants_out()) {
    if (!wait_ready(socket_.get(), Direction::kOut, deadline)) {
      return {StatusCode::kUnavailable, "no answer"};
    }
    pump_out();
  }
  return {};
}

Result<Frame> Connection::receive_blocking(Deadline deadline) {
  while (true) {
    STRETTO_TRY_ASSIGN(auto frame, reader_.next());
    if (frame) {
      return std::move(*frame);
    }
    if (ended_) {
      return fail(StatusCode::kUnavailable, "the connection was closed during the greeting");
    }
    if (!wait_ready(socket_.get(), Direction::kIn, deadline)) {
      return fail(StatusCode::kUnavailable,
                  "something listens there but does not answer as Stretto does");
    }
    pump_in(Clock::now());
  }
}

}  // namespace stretto::rendezvous

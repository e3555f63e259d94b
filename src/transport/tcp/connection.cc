// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/connection.hpp"

#include "base/log.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include <sys/socket.h>
#include <sys/uio.h>

namespace stretto::transport {
namespace {

// One turn reads at most this much from a peer: enough to empty a window, not enough to starve.
constexpr std::size_t kReceiveBudget = std::size_t{512} << 10;

std::string rank_text(Rank rank) {
  return "rank " + std::to_string(index_of(rank));
}

std::string errno_text(int error) {
  return std::strerror(error);
}

}  // namespace

Connection::Connection(Rank peer,
                       FileDescriptor socket,
                       const FlowOptions& options,
                       const WindowSizer& sizer,
                       EventQueue& events,
                       spi::TransportCounters& counters)
    : peer_(peer),
      socket_(std::move(socket)),
      events_(events),
      counters_(counters),
      incoming_(options),
      sizer_(sizer),
      outgoing_(options) {
  dirty_ = true;  // the first credit goes out
}

Status Connection::announce(const spi::MessageHeader& header,
                            std::span<const std::byte> payload,
                            std::uint64_t token) {
  if (!is_open()) {
    return lost_;
  }
  if (header.payload_bytes != payload.size() || payload.size() > kMaxPayloadBytes) {
    return {StatusCode::kInvalidArgument,
            "the header says " + std::to_string(header.payload_bytes) +
                " bytes of payload, the payload has " + std::to_string(payload.size())};
  }
  if (writer_.control_room() < kFrameHeadBytes + kMessageHeaderBytes + kRoomForOthers ||
      !outgoing_.has_room()) {
    return {StatusCode::kWouldBlock, {}};
  }
  const bool expected = (header.flags & spi::kExpected) != 0;
  const std::uint64_t number = outgoing_.add(header.priority, payload, token, expected);
  append(encode(FrameHead{FrameType::kAnnounce, kMessageHeaderBytes, number, 0}));
  append(encode(header));
  if (payload.empty()) {
    ++counters_.messages_sent;
    report(spi::TransportEvent::Kind::kSent, 0, token, header);
  }
  return {};
}

Status Connection::accept(spi::MessageId message, std::span<std::byte> buffer) {
  if (!is_open()) {
    return lost_;
  }
  STRETTO_TRY_ASSIGN(const auto complete,
                     incoming_.accept(static_cast<std::uint64_t>(message), buffer));
  if (complete) {
    report(spi::TransportEvent::Kind::kReceived, static_cast<std::uint64_t>(message), 0, *complete);
  }
  dirty_ = true;
  if (stalled_) {
    resume();
  }
  return {};
}

bool Connection::is_moving() const noexcept {
  return is_open() && (incoming_.accepted() > 0 || outgoing_.moving() > 0 || !writer_.empty());
}

void Connection::say_bye() {
  if (is_open()) {
    append(encode(FrameHead{FrameType::kBye, 0, 0, 0}));
    said_bye_ = true;
  }
}

void Connection::shut() noexcept {
  lost_ = {StatusCode::kPeerLost, "this rank has closed its connections"};
  close_socket();
}

void Connection::close_socket() noexcept {
  socket_.reset();
  payload_left_ = 0;
  stalled_ = false;
  writer_.clear();
}

void Connection::report(spi::TransportEvent::Kind kind,
                        std::uint64_t message,
                        std::uint64_t token,
                        const spi::MessageHeader& header) {
  events_.push({kind, peer_, spi::MessageId{message}, token, header});
}

void Connection::lose(const Status& reason, LogLevel level) {
  lost_ = reason;
  close_socket();
  log(level, reason.message());
  report(spi::TransportEvent::Kind::kPeerLost, 0, 0, {});
}

void Connection::corrupt(const Status& reason) {
  ++counters_.refused;
  lose({StatusCode::kPeerLost,
        rank_text(peer_) + " sent " + std::string(reason.message()) +
            "; its connection was dropped"});
}

/// A peer that has read this side's farewell may close without one of its own.
LogLevel Connection::level_of_an_end() const noexcept {
  return said_bye_ ? LogLevel::kDebug : LogLevel::kWarning;
}

/// After the peer's farewell: worth a warning only if somebody still waits for it.
void Connection::part() {
  const bool somebody_waits =
      incoming_.open() > 0 || outgoing_.open() > 0 || writer_.has_fragment();
  lose({StatusCode::kPeerLost, rank_text(peer_) + " has left the group"},
       somebody_waits ? LogLevel::kWarning : LogLevel::kDebug);
}

// --- input

void Connection::receive() {
  std::size_t budget = kReceiveBudget;
  while (is_open() && budget > 0 && !stalled_) {
    std::array<iovec, 2> parts{};
    std::size_t count = 0;
    std::size_t wanted = 0;
    if (payload_left_ > 0) {
      parts[count++] = {payload_, payload_left_};
      wanted += payload_left_;
    }
    // What parse() leaves is less than a frame, so there is always room behind it.
    std::copy(input_.begin() + static_cast<std::ptrdiff_t>(input_begin_),
              input_.begin() + static_cast<std::ptrdiff_t>(input_end_),
              input_.begin());
    input_end_ -= input_begin_;
    input_begin_ = 0;
    parts[count++] = {input_.data() + input_end_, input_.size() - input_end_};
    wanted += input_.size() - input_end_;

    const ssize_t got = ::readv(socket_.get(), parts.data(), static_cast<int>(count));
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        lose({StatusCode::kPeerLost,
              "the connection to " + rank_text(peer_) + " broke: " + errno_text(errno)},
             level_of_an_end());
      }
      return;
    }
    if (got == 0) {
      lose({StatusCode::kPeerLost, rank_text(peer_) + " closed its connection without a farewell"},
           level_of_an_end());
      return;
    }
    const auto bytes = static_cast<std::size_t>(got);
    sizer_.came(bytes, Clock::now());
    incoming_.set_window(sizer_.window());
    if (!take(bytes) || bytes < wanted) {
      return;  // a short read has emptied the socket
    }
    budget -= std::min(budget, bytes);
  }
}

/// Goes on where the input stopped for want of a buffer.
void Connection::resume() {
  stalled_ = false;
  parse();
}

/// Accounts for bytes that a read has put in place.  False once the connection is gone.
bool Connection::take(std::size_t bytes) {
  const std::size_t in_place = std::min(bytes, payload_left_);
  if (in_place > 0) {
    place_payload(in_place);
  }
  input_end_ += bytes - in_place;
  return parse();
}

void Connection::place_payload(std::size_t bytes) {
  payload_ += bytes;
  payload_left_ -= bytes;
  counters_.payload_bytes_received += bytes;
  dirty_ = true;  // the window may have room for another grant
  if (const auto header = incoming_.received(payload_head_.message, bytes)) {
    report(spi::TransportEvent::Kind::kReceived, payload_head_.message, 0, *header);
  }
}

bool Connection::parse() {
  while (is_open() && !stalled_) {
    const std::span<const std::byte> rest(input_.data() + input_begin_, input_end_ - input_begin_);
    if (payload_left_ > 0) {
      const std::size_t bytes = std::min(payload_left_, rest.size());
      if (bytes == 0) {
        return true;
      }
      std::memcpy(payload_, rest.data(), bytes);
      input_begin_ += bytes;
      place_payload(bytes);
      continue;
    }
    if (rest.size() < kFrameHeadBytes) {
      return true;
    }
    const auto head = decode_frame_head(rest.first<kFrameHeadBytes>());
    if (!head) {
      corrupt(head.error());
      return false;
    }
    const std::size_t body = head->type == FrameType::kAnnounce ? kMessageHeaderBytes : 0;
    if (rest.size() < kFrameHeadBytes + body) {
      return true;
    }
    input_begin_ += kFrameHeadBytes + body;
    if (!handle_frame(*head, rest.subspan(kFrameHeadBytes, body))) {
      return false;
    }
  }
  return is_open();
}

bool Connection::handle_frame(const FrameHead& head, std::span<const std::byte> body) {
  Status status;
  switch (head.type) {
    case FrameType::kAnnounce: {
      const auto header = decode_message_header(body.first<kMessageHeaderBytes>());
      status = header ? incoming_.announced(head.message, *header) : header.error();
      if (status.is_ok()) {
        report(spi::TransportEvent::Kind::kAnnounced, head.message, 0, *header);
      }
      break;
    }
    case FrameType::kGrant:
      status = outgoing_.granted(head);
      dirty_ = true;
      break;
    case FrameType::kCredit:
      status = outgoing_.credited(head.offset);
      dirty_ = true;
      break;
    case FrameType::kData:
      return begin_payload(head);
    case FrameType::kBye:
      part();
      return false;
  }
  if (!status.is_ok()) {
    corrupt(status);
    return false;
  }
  return true;
}

bool Connection::begin_payload(const FrameHead& head) {
  const auto place = incoming_.begin_data(head);
  if (!place && place.error().code() == StatusCode::kWouldBlock) {
    input_begin_ -= kFrameHeadBytes;  // it is read again once there is a buffer
    stalled_ = true;
    return true;
  }
  if (!place) {
    corrupt(place.error());
    return false;
  }
  payload_head_ = head;
  payload_ = *place;
  payload_left_ = head.length;
  return true;
}

// --- output

void Connection::append(std::span<const std::byte> bytes) noexcept {
  writer_.append(bytes);
  dirty_ = true;
}

/// Turns room in the window into frames; consecutive grants of one message become one frame.
void Connection::queue_grants() {
  ReceiveFlow::Grant pending;
  const auto flush = [&] {
    if (pending.message != 0) {
      append(encode(FrameHead{FrameType::kGrant, 0, pending.message, pending.up_to}));
    }
  };
  // Room for this frame, the one before it, and the farewell.
  while (writer_.control_room() >= 3 * kFrameHeadBytes) {
    const auto grant = incoming_.next_grant();
    if (!grant) {
      break;
    }
    if (grant->message != pending.message) {
      flush();
    }
    pending = *grant;
  }
  flush();
}

/// Renews what the peer may send of expected messages.
void Connection::queue_credit() {
  if (writer_.control_room() >= 3 * kFrameHeadBytes) {
    if (const std::size_t credit = incoming_.take_credit(); credit > 0) {
      append(encode(FrameHead{FrameType::kCredit, 0, 0, credit}));
    }
  }
}

void Connection::send() {
  while (is_open()) {
    queue_credit();
    queue_grants();
    if (!writer_.has_fragment()) {
      if (const auto next = outgoing_.next_fragment()) {
        writer_.start(*next);
      }
    }
    dirty_ = !writer_.empty();
    if (!dirty_) {
      return;
    }
    FrameWriter::Parts parts{};
    msghdr message{};
    message.msg_iovlen = writer_.gather(parts);
    message.msg_iov = parts.data();
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        blocked_ = true;
        return;
      }
      // The other side is gone, but what it sent before may still lie here, and say why: reading
      // comes to the same end and reports it.
      if (errno == EPIPE || errno == ECONNRESET) {
        dirty_ = false;
        return;
      }
      lose({StatusCode::kPeerLost,
            "the connection to " + rank_text(peer_) + " broke: " + errno_text(errno)});
      return;
    }
    counters_.wire_bytes_sent += static_cast<std::uint64_t>(sent);
    const FrameWriter::Sent done = writer_.advance(static_cast<std::size_t>(sent));
    counters_.payload_bytes_sent += done.payload_bytes;
    if (done.finished) {
      ++counters_.messages_sent;
      report(spi::TransportEvent::Kind::kSent, 0, *done.finished, {});
    }
  }
}

}  // namespace stretto::transport

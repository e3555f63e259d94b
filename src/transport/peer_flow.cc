// SPDX-License-Identifier: Apache-2.0
#include "transport/peer_flow.hpp"

#include "stretto/options.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

namespace stretto::transport {
namespace {

// A correct sender stops at the first; only rubbish reaches the second.
constexpr std::size_t kMaxOpenSends = std::size_t{1} << 18;
constexpr std::size_t kMaxOpenReceives = std::size_t{1} << 20;
// Less is not sent while more waits, so that frames stay few.  Half of the smallest window.
constexpr std::uint64_t kCrumb = std::uint64_t{32} << 10;
constexpr std::size_t kPiecesPerWindow = 4;
constexpr std::size_t kLeastPiece = std::size_t{16} << 10;
constexpr std::uint64_t kMaxCredit = std::uint64_t{1} << 31;

std::string message_text(std::uint64_t message) {
  return "message " + std::to_string(message);
}

}  // namespace

Status FlowOptions::read_environment() {
  const char* text = std::getenv("STRETTO_WINDOW");
  // "auto" leaves what the transport has chosen, as it does where nothing is said.
  if (text != nullptr && *text != '\0' && std::string_view(text) != "auto") {
    const auto bytes = parse_bytes(text);
    if (!bytes) {
      return {StatusCode::kInvalidArgument,
              "STRETTO_WINDOW: " + std::string(bytes.error().message())};
    }
    window_bytes = *bytes;
  }
  return {};
}

Status FlowOptions::validate() const {
  if (window_bytes < 4096 || window_bytes > (std::size_t{1} << 30)) {
    return {
        StatusCode::kInvalidArgument,
        "the window is " + std::to_string(window_bytes) + " bytes; it must be from 4 KiB to 1 GiB"};
  }
  if (fragment_bytes < 1024 || fragment_bytes > kMaxFragmentBytes) {
    return {StatusCode::kInvalidArgument,
            "the fragment is " + std::to_string(fragment_bytes) +
                " bytes; it must be from 1 KiB to 64 MiB"};
  }
  return {};
}

bool UrgencyHeap::later(const Entry& a, const Entry& b) noexcept {
  return a.priority != b.priority ? a.priority > b.priority : a.message > b.message;
}

void UrgencyHeap::push(std::uint32_t priority, std::uint64_t message) {
  entries_.push_back({priority, message});
  std::push_heap(entries_.begin(), entries_.end(), later);
}

void UrgencyHeap::pop() {
  std::pop_heap(entries_.begin(), entries_.end(), later);
  entries_.pop_back();
}

ReceiveFlow::ReceiveFlow(const FlowOptions& options)
    : window_(options.window_bytes),
      fragment_(
          std::min({options.fragment_bytes, options.window_bytes, std::size_t{kMaxFragmentBytes}})),
      gives_credit_(options.credit) {}

void ReceiveFlow::reserve(std::size_t messages) {
  messages_.reserve(messages);
  grantable_.reserve(messages);
}

Status ReceiveFlow::announced(std::uint64_t message, const spi::MessageHeader& header) {
  if (message != last_announced_ + 1) {
    return {
        StatusCode::kCorruptWire,
        "an announcement of " + message_text(message) + " after " + message_text(last_announced_)};
  }
  if (messages_.size() >= kMaxOpenReceives) {
    return {StatusCode::kCorruptWire, "more announcements than anybody has a use for"};
  }
  last_announced_ = message;
  const bool expected = gives_credit_ && (header.flags & spi::kExpected) != 0;
  messages_.insert(message, Incoming{.header = header, .expected = expected});
  return {};
}

Result<std::optional<spi::MessageHeader>> ReceiveFlow::accept(std::uint64_t message,
                                                              std::span<std::byte> buffer) {
  Incoming* const incoming = messages_.find(message);
  if (incoming == nullptr || incoming->accepted) {
    return fail(StatusCode::kInvalidArgument,
                message_text(message) + " was not announced, or was accepted before");
  }
  if (buffer.size() != incoming->header.payload_bytes) {
    return fail(StatusCode::kInvalidArgument,
                "the buffer has " + std::to_string(buffer.size()) + " bytes; " +
                    message_text(message) + " brings " +
                    std::to_string(incoming->header.payload_bytes));
  }
  if (buffer.empty()) {
    const std::optional<spi::MessageHeader> header = incoming->header;
    messages_.erase(message);
    return header;
  }
  incoming->accepted = true;
  incoming->buffer = buffer.data();
  ++accepted_;
  if (incoming->expected) {
    incoming->granted = buffer.size();
  } else {
    grantable_.push(incoming->header.priority, message);
  }
  return std::optional<spi::MessageHeader>();
}

std::optional<ReceiveFlow::Grant> ReceiveFlow::next_grant() {
  if (grantable_.empty()) {
    return std::nullopt;
  }
  const std::uint64_t message = grantable_.top();
  Incoming& incoming = *messages_.find(message);
  const std::uint64_t left = incoming.header.payload_bytes - incoming.granted;
  // Several pieces make a window: with one alone, the way of each grant would be idle time.
  const std::size_t unit = std::min(fragment_, std::max(window_ / kPiecesPerWindow, kLeastPiece));
  const auto piece = static_cast<std::size_t>(std::min<std::uint64_t>(unit, left));
  if (outstanding_ + piece > window_) {
    return std::nullopt;
  }
  outstanding_ += piece;
  incoming.granted += piece;
  if (incoming.granted == incoming.header.payload_bytes) {
    grantable_.pop();
  }
  return Grant{message, incoming.granted};
}

Result<std::byte*> ReceiveFlow::begin_data(const FrameHead& head) {
  Incoming* const incoming = messages_.find(head.message);
  if (incoming == nullptr) {
    return fail(StatusCode::kCorruptWire, "data of unknown " + message_text(head.message));
  }
  if (incoming->expected && !incoming->accepted) {
    return fail(StatusCode::kWouldBlock, {});
  }
  if (incoming->expected && head.length > credit_) {
    return fail(StatusCode::kCorruptWire,
                "data of " + message_text(head.message) + " beyond the credit for it");
  }
  if (head.offset != incoming->received || head.length > incoming->granted - incoming->received) {
    return fail(StatusCode::kCorruptWire,
                "data of " + message_text(head.message) + " at " + std::to_string(head.offset) +
                    " of length " + std::to_string(head.length) + ", where " +
                    std::to_string(incoming->received) + " have come and " +
                    std::to_string(incoming->granted) + " were granted");
  }
  return incoming->buffer + head.offset;
}

Result<std::byte*> ReceiveFlow::place_of(const FrameHead& head) {
  Incoming* const incoming = messages_.find(head.message);
  if (incoming == nullptr || head.offset > incoming->granted ||
      head.length > incoming->granted - head.offset ||
      head.length > incoming->granted - incoming->received) {
    return fail(StatusCode::kCorruptWire,
                "data of " + message_text(head.message) + " at " + std::to_string(head.offset) +
                    " of length " + std::to_string(head.length) + " that was not granted");
  }
  return incoming->buffer + head.offset;
}

std::optional<spi::MessageHeader> ReceiveFlow::received(std::uint64_t message, std::size_t bytes) {
  Incoming& incoming = *messages_.find(message);
  if (incoming.expected) {
    credit_ -= bytes;
  } else {
    outstanding_ -= bytes;
  }
  incoming.received += bytes;
  if (incoming.received != incoming.header.payload_bytes) {
    return std::nullopt;
  }
  const std::optional<spi::MessageHeader> header = incoming.header;
  messages_.erase(message);
  --accepted_;
  return header;
}

std::size_t ReceiveFlow::take_credit() noexcept {
  // In few frames, but before the sender has come to its end: it waits for half a window at most.
  if (credit_ + window_ / 4 > window_) {
    return 0;
  }
  const std::size_t credit = window_ - credit_;
  credit_ = window_;
  return credit;
}

SendFlow::SendFlow(const FlowOptions& options)
    : fragment_(std::min(options.fragment_bytes, std::size_t{kMaxFragmentBytes})) {}

void SendFlow::reserve(std::size_t messages) {
  messages_.reserve(messages);
  sendable_.reserve(messages);
  expected_.reserve(messages);
}

bool SendFlow::has_room() const noexcept {
  return messages_.size() < kMaxOpenSends;
}

std::uint64_t SendFlow::add(std::uint32_t priority,
                            std::span<const std::byte> payload,
                            std::uint64_t token,
                            bool expected) {
  const std::uint64_t number = ++last_number_;
  if (payload.empty()) {
    return number;
  }
  messages_.insert(number,
                   Outgoing{.payload = payload.data(),
                            .size = payload.size(),
                            .token = token,
                            .granted = expected ? payload.size() : 0,
                            .priority = priority});
  if (expected) {
    expected_.push(priority, number);
    ++moving_;
  }
  return number;
}

Status SendFlow::credited(std::uint64_t bytes) {
  if (bytes > kMaxCredit || credit_ > kMaxCredit - bytes) {
    return {StatusCode::kCorruptWire, "a credit of " + std::to_string(bytes) + " bytes"};
  }
  credit_ += bytes;
  most_credit_ = std::max(most_credit_, credit_);
  return {};
}

Status SendFlow::granted(const FrameHead& head) {
  Outgoing* const outgoing = messages_.find(head.message);
  if (outgoing == nullptr) {
    return {StatusCode::kCorruptWire, "a grant for unknown " + message_text(head.message)};
  }
  if (head.offset <= outgoing->granted || head.offset > outgoing->size) {
    return {StatusCode::kCorruptWire,
            "a grant of " + message_text(head.message) + " up to " + std::to_string(head.offset) +
                ", where " + std::to_string(outgoing->granted) + " were granted of " +
                std::to_string(outgoing->size)};
  }
  moving_ += outgoing->granted == 0 ? 1 : 0;
  if (outgoing->sent == outgoing->granted) {
    sendable_.push(outgoing->priority, head.message);
  }
  outgoing->granted = head.offset;
  return {};
}

/// Whether there is credit for a whole fragment, or for enough to be worth a frame.  A receiver
/// leaves no sender with less than three quarters of a window, so this always comes.
bool SendFlow::expected_may_move() noexcept {
  if (expected_.empty()) {
    return false;
  }
  const Outgoing& outgoing = *messages_.find(expected_.top());
  const std::uint64_t whole = std::min<std::uint64_t>(fragment_, outgoing.size - outgoing.sent);
  return credit_ > 0 && credit_ >= std::min({whole, most_credit_ / 2, kCrumb});
}

std::optional<SendFlow::Fragment> SendFlow::next_fragment() {
  const bool expected = expected_may_move();
  if (expected && (sendable_.empty() || expected_.top_priority() <= sendable_.top_priority())) {
    const Fragment fragment = cut(expected_, static_cast<std::size_t>(credit_));
    credit_ -= fragment.head.length;
    return fragment;
  }
  return sendable_.empty() ? std::nullopt : std::optional(cut(sendable_, fragment_));
}

/// A fragment of the first message of a heap, of at most so many bytes.
SendFlow::Fragment SendFlow::cut(UrgencyHeap& from, std::size_t most) {
  const std::uint64_t message = from.top();
  Outgoing& outgoing = *messages_.find(message);
  const auto length = static_cast<std::uint32_t>(
      std::min<std::uint64_t>({fragment_, most, outgoing.granted - outgoing.sent}));
  Fragment fragment;
  fragment.head = {FrameType::kData, length, message, outgoing.sent};
  fragment.data = outgoing.payload + outgoing.sent;
  fragment.token = outgoing.token;
  outgoing.sent += length;
  fragment.is_last = outgoing.sent == outgoing.size;
  if (outgoing.sent == outgoing.granted) {
    from.pop();
  }
  if (fragment.is_last) {
    messages_.erase(message);
    --moving_;
  }
  return fragment;
}

}  // namespace stretto::transport

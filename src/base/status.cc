// SPDX-License-Identifier: Apache-2.0
#include "stretto/status.hpp"

namespace stretto {

std::string_view to_string(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kWouldBlock:
      return "would block";
    case StatusCode::kDeadlineExceeded:
      return "deadline exceeded";
    case StatusCode::kPeerLost:
      return "peer lost";
    case StatusCode::kAborted:
      return "aborted";
    case StatusCode::kCorruptWire:
      return "corrupt message";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kInternal:
      return "internal error";
  }
  return "unknown";
}

Status::Status(StatusCode code, std::string message) : code_(code) {
  if (code != StatusCode::kOk && !message.empty()) {
    message_ = std::make_shared<const std::string>(std::move(message));
  }
}

std::string_view Status::message() const noexcept {
  return message_ ? std::string_view(*message_) : std::string_view();
}

std::string Status::to_string() const {
  std::string text(stretto::to_string(code_));
  if (message_ && !message_->empty()) {
    text += ": ";
    text += *message_;
  }
  return text;
}

}  // namespace stretto

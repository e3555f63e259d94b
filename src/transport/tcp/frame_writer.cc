// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/frame_writer.hpp"

#include <algorithm>
#include <cstring>

namespace stretto::transport {

void FrameWriter::append(std::span<const std::byte> bytes) noexcept {
  if (control_end_ + bytes.size() > control_.size()) {
    std::memmove(control_.data(), control_.data() + control_begin_, control_size());
    control_end_ -= control_begin_;
    control_begin_ = 0;
  }
  std::memcpy(control_.data() + control_end_, bytes.data(), bytes.size());
  control_end_ += bytes.size();
}

void FrameWriter::start(const SendFlow::Fragment& fragment) noexcept {
  fragment_ = fragment;
  head_ = encode(fragment.head);
  fragment_bytes_ = fragment_left_ = kFrameHeadBytes + fragment.head.length;
}

void FrameWriter::clear() noexcept {
  control_begin_ = control_end_ = 0;
  fragment_left_ = 0;
}

std::size_t FrameWriter::gather(Parts& parts) const noexcept {
  std::size_t count = 0;
  const auto add = [&](const std::byte* data, std::size_t bytes) {
    parts[count++] = {const_cast<std::byte*>(data), bytes};  // sendmsg only reads it
  };
  const auto add_fragment = [&] {
    const std::size_t done = fragment_done();
    if (done < kFrameHeadBytes) {
      add(head_.data() + done, kFrameHeadBytes - done);
      add(fragment_.data, fragment_.head.length);
    } else {
      add(fragment_.data + (done - kFrameHeadBytes), fragment_left_);
    }
  };
  const bool has_begun = has_fragment() && fragment_done() > 0;
  if (has_begun) {
    add_fragment();
  }
  if (control_size() > 0) {
    add(control_.data() + control_begin_, control_size());
  }
  if (has_fragment() && !has_begun) {
    add_fragment();
  }
  return count;
}

FrameWriter::Sent FrameWriter::advance(std::size_t bytes) noexcept {
  Sent sent;
  if (has_fragment() && fragment_done() > 0) {
    bytes -= advance_fragment(bytes, sent);
  }
  const std::size_t control = std::min(bytes, control_size());
  control_begin_ += control;
  if (control_begin_ == control_end_) {
    control_begin_ = control_end_ = 0;
  }
  if (bytes > control) {
    advance_fragment(bytes - control, sent);
  }
  return sent;
}

std::size_t FrameWriter::advance_fragment(std::size_t bytes, Sent& sent) noexcept {
  const std::size_t step = std::min(bytes, fragment_left_);
  const std::size_t head_left = kFrameHeadBytes - std::min(kFrameHeadBytes, fragment_done());
  sent.payload_bytes += step - std::min(step, head_left);
  fragment_left_ -= step;
  if (fragment_left_ == 0 && fragment_.is_last) {
    sent.finished = fragment_.token;
  }
  return step;
}

}  // namespace stretto::transport

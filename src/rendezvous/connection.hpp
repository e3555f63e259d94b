// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"
#include "rendezvous/frame.hpp"

#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <deque>
#include <optional>
#include <string>

namespace stretto::rendezvous {

/// One control connection: frames in, frames out, never blocking except where stated.
///
/// Threading: thread-compatible.
class Connection {
 public:
  explicit Connection(FileDescriptor socket)
      : socket_(std::move(socket)), reader_(kStrangerBodyBytes), heard_(Clock::now()) {}

  int descriptor() const noexcept { return socket_.get(); }
  FrameReader& reader() noexcept { return reader_; }

  void queue(SharedFrame frame) { outgoing_.push_back(std::move(frame)); }
  /// Hands to the system what it takes.
  void pump_out();
  bool wants_out() const noexcept { return !ended_ && !outgoing_.empty(); }

  /// Takes what has arrived.
  void pump_in(TimePoint now);
  /// Says that nothing more will be sent, and throws away what arrives.
  void finish_sending() noexcept;
  void discard_input();
  /// How the connection ended, once it has.
  const std::optional<std::string>& ended() const noexcept { return ended_; }

  /// When bytes last arrived.
  TimePoint heard() const noexcept { return heard_; }
  void set_heard(TimePoint when) noexcept { heard_ = when; }

  // For the handshake, before a control thread has the connection.
  Status send_blocking(SharedFrame frame, Deadline deadline);
  Result<Frame> receive_blocking(Deadline deadline);

 private:
  void end(std::string how);

  FileDescriptor socket_;
  FrameReader reader_;
  std::deque<SharedFrame> outgoing_;
  std::size_t sent_of_front_ = 0;
  TimePoint heard_;
  std::optional<std::string> ended_;
};

}  // namespace stretto::rendezvous

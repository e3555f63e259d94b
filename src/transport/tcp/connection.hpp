// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"
#include "base/log.hpp"
#include "transport/event_queue.hpp"
#include "transport/peer_flow.hpp"
#include "transport/tcp/frame_writer.hpp"
#include "transport/tcp/window_sizer.hpp"
#include "transport/wire.hpp"

#include "stretto/spi/transport.hpp"
#include "stretto/status.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace stretto::transport {

/// The stream of one peer: frames in, frames out, no copy of a payload in user space.
///
/// Control frames go before payload, at the border of the fragment that is on its way.
///
/// Threading: confined(progress).        Blocking: never.
class Connection {
 public:
  /// `events` and `counters` outlive the connection.
  Connection(Rank peer,
             FileDescriptor socket,
             const FlowOptions& options,
             const WindowSizer& sizer,
             EventQueue& events,
             spi::TransportCounters& counters);

  void reserve(std::size_t messages) {
    incoming_.reserve(messages);
    outgoing_.reserve(messages);
  }
  Status announce(const spi::MessageHeader& header,
                  std::span<const std::byte> payload,
                  std::uint64_t token);
  Status accept(spi::MessageId message, std::span<std::byte> buffer);

  /// Takes what the system has, within a budget that keeps one peer from starving the others.
  void receive();
  /// Gives the system what it takes.
  void send();
  /// Queues the word that this rank leaves; the last frame.
  void say_bye();
  /// Closes the socket on this side's own account; nothing is reported.
  void shut() noexcept;

  bool is_open() const noexcept { return socket_.is_open(); }
  Rank peer() const noexcept { return peer_; }
  int descriptor() const noexcept { return socket_.get(); }
  /// Whether send() has something that the system did not refuse a moment ago.
  bool is_dirty() const noexcept { return dirty_ && !blocked_ && is_open(); }
  /// Whether the system refused: send() again once the socket is writable.
  bool is_blocked() const noexcept { return blocked_ && is_open(); }
  void writable() noexcept {
    blocked_ = false;
    dirty_ = true;
  }
  /// Whether messages that either side accepted are still on their way, or frames unsent.
  bool is_moving() const noexcept;
  /// What epoll was last told: whether to report that the socket is writable.
  bool watches_writable = false;

 private:
  static constexpr std::size_t kInputBytes = 2048;
  // Announcements stop short of the end, so that grants and the farewell always find room.
  static constexpr std::size_t kRoomForOthers = FrameWriter::kControlBytes / 4;

  void report(spi::TransportEvent::Kind kind,
              std::uint64_t message,
              std::uint64_t token,
              const spi::MessageHeader& header);
  void lose(const Status& reason, LogLevel level = LogLevel::kWarning);
  LogLevel level_of_an_end() const noexcept;
  void part();
  void close_socket() noexcept;

  // Input.
  bool take(std::size_t bytes);
  bool parse();
  bool handle_frame(const FrameHead& head, std::span<const std::byte> body);
  bool begin_payload(const FrameHead& head);
  void place_payload(std::size_t bytes);
  void resume();
  void corrupt(const Status& reason);

  // Output.
  void append(std::span<const std::byte> bytes) noexcept;
  void queue_grants();
  void queue_credit();

  const Rank peer_;
  FileDescriptor socket_;
  EventQueue& events_;
  spi::TransportCounters& counters_;
  Status lost_;

  ReceiveFlow incoming_;
  WindowSizer sizer_;
  std::array<std::byte, kInputBytes> input_{};
  std::size_t input_begin_ = 0;
  std::size_t input_end_ = 0;
  FrameHead payload_head_;        // of the payload that is coming in
  std::byte* payload_ = nullptr;  // where its next byte goes
  std::size_t payload_left_ = 0;
  bool stalled_ = false;  // the next frame brings a message that nobody has accepted yet

  SendFlow outgoing_;
  FrameWriter writer_;
  bool dirty_ = false;
  bool blocked_ = false;
  bool said_bye_ = false;
};

}  // namespace stretto::transport

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/log.hpp"
#include "transport/event_queue.hpp"
#include "transport/message_table.hpp"
#include "transport/peer_flow.hpp"
#include "transport/ucx/letter.hpp"
#include "transport/ucx/worker.hpp"

#include "stretto/spi/transport.hpp"
#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace stretto::transport {

/// What the peers of one rank share; outlives them.
struct UcxShared {
  UcxWorker& worker;
  Envelope envelope;  ///< of this rank
  EventQueue& events;
  spi::TransportCounters& counters;
  /// All ranks take device memory: receivers fetch every fragment, since UCX alone can copy it.
  bool in_device_memory = false;
};

/// The endpoint to one peer: frames as active messages, payload where it belongs.
///
/// A peer that is lost is reported once UCX has let go of everything that has to do with it, since
/// payloads and buffers are the caller's from then on.
///
/// Relies on short active messages of one endpoint arriving in order (they share a lane); fragments
/// may overtake each other.
///
/// Threading: confined(progress).        Blocking: never.
class UcxPeer {
 public:
  UcxPeer(Rank peer, const UcxShared& shared, const FlowOptions& options);

  /// Errors: kUnavailable if there is no way to the address.
  Status connect(std::span<const std::byte> address);
  void say_hello();
  void on_hello() noexcept { greeted_ = true; }
  /// Whether its hello has come and all that was sent to it has gone.
  bool is_connected() const noexcept { return greeted_ && pending_ == 0; }

  void reserve(std::size_t messages) {
    incoming_.reserve(messages);
    outgoing_.reserve(messages);
  }
  Status announce(const spi::MessageHeader& header,
                  std::span<const std::byte> payload,
                  std::uint64_t token);
  Status accept(spi::MessageId message, std::span<std::byte> buffer);

  void on_control(std::span<const std::byte> frame);
  /// Says where a fragment goes.  Errors: kCorruptWire; the peer is then on its way out.
  Result<std::byte*> on_data(const FrameHead& head, std::size_t length);
  /// Has UCX fetch it there; `data` says where from.
  void fetch(const FrameHead& head, void* data, std::byte* place);
  /// Says that it lies there.
  void arrived(std::uint64_t message, std::size_t bytes);

  /// Hands UCX what can go.
  void send();
  bool is_dirty() const noexcept { return dirty_; }
  void corrupt(const Status& reason);

  /// Sends the word that this rank leaves, behind everything else; pending until the peer's UCX has
  /// it all.
  void say_bye();
  /// Gives the endpoint up on this side's own account; nothing is reported.
  void shut();

  Rank rank() const noexcept { return peer_; }
  bool is_open() const noexcept { return state_ == State::kOpen; }
  /// Operations that UCX has not completed.
  std::size_t pending() const noexcept { return pending_; }
  /// Whether messages that either side accepted are still on their way, or frames unsent.
  bool is_moving() const noexcept;

 private:
  enum class State { kOpen, kFailing, kGone };
  /// One operation of UCX's, reused when it has completed.
  struct Operation {
    UcxPeer* peer = nullptr;
    LetterHead head;
    std::uint64_t message = 0;  ///< 0: no payload
    std::size_t bytes = 0;
  };
  /// A message of which fragments are with UCX.
  struct Flight {
    std::uint64_t token = 0;
    std::size_t fragments = 0;
    bool all_cut = false;
  };

  static void on_broken(void* self, ucp_ep_h endpoint, ucs_status_t status);
  static void on_sent(void* request, ucs_status_t status, void* operation);
  static void on_fetched(void* request, ucs_status_t status, std::size_t length, void* operation);
  static void on_done(void* request, ucs_status_t status, void* self);

  Operation& take_operation();
  void send_control(const FrameHead& head, std::span<const std::byte> body);
  void send_fragment(const SendFlow::Fragment& fragment);
  void post(LetterKind kind, Operation& operation, std::span<const std::byte> payload);
  void sent(Operation& operation, ucs_status_t status);
  void fetched(Operation& operation, ucs_status_t status);
  void release(Operation& operation);
  Status handle(const FrameHead& head, std::span<const std::byte> body);
  void queue_grants();

  void report(spi::TransportEvent::Kind kind,
              std::uint64_t message,
              std::uint64_t token,
              const spi::MessageHeader& header);
  void fail(const Status& reason, LogLevel level = LogLevel::kWarning);
  void broke(ucs_status_t status);
  void part_if_all_has_come();
  void close_endpoint();
  void settle();

  const Rank peer_;
  const UcxShared shared_;
  ucp_ep_h endpoint_ = nullptr;
  State state_ = State::kOpen;
  Status lost_;
  bool quiet_ = false;  ///< this side leaves: nothing to report
  bool dirty_ = false;
  bool greeted_ = false;
  bool said_bye_ = false;
  bool heard_bye_ = false;

  ReceiveFlow incoming_;
  SendFlow outgoing_;
  MessageTable<Flight> flights_;
  std::deque<Operation> operations_;  // all there are; a deque does not move them
  std::vector<Operation*> free_;
  std::size_t controls_ = 0;  // control messages that have not gone
  std::size_t pending_ = 0;
};

}  // namespace stretto::transport

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/message_table.hpp"
#include "transport/wire.hpp"

#include "stretto/spi/transport.hpp"
#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stretto::transport {

// What may move between two ranks, without a network: the receiver grants bytes of accepted
// messages, the sender cuts granted bytes into fragments.  A grant is given only against bytes that
// have a buffer, and every granted byte arrives without any further decision, so the window always
// comes back: whatever the schedule, accepted messages drain.
//
// Expected messages (spi::kExpected) need no grant where both sides have agreed on that.  They move
// against a credit that the receiver gives in advance and renews as their bytes come in, a window
// of their own; their receiver accepts at once, so this window comes back as well.  It saves each
// of them the way of a grant, which on a busy link is as long as the queue.

/// How much moves at a time.
struct FlowOptions {
  std::size_t window_bytes = std::size_t{256} << 10;   ///< granted and not received, per peer; and
                                                       ///< as many of expected messages
  std::size_t fragment_bytes = std::size_t{64} << 10;  ///< unit of granting and of interleaving
  bool credit = false;  ///< expected messages move against credit; else they are like any other

  /// Takes the window from STRETTO_WINDOW if that names one, and not "auto".
  ///
  /// Errors: kInvalidArgument.
  Status read_environment();
  Status validate() const;
};

/// Messages by urgency: smaller priority first, then the one announced earlier.
///
/// Threading: thread-compatible.
class UrgencyHeap {
 public:
  UrgencyHeap() { entries_.reserve(256); }
  void reserve(std::size_t messages) { entries_.reserve(messages); }
  bool empty() const noexcept { return entries_.empty(); }
  std::uint64_t top() const noexcept { return entries_.front().message; }
  std::uint32_t top_priority() const noexcept { return entries_.front().priority; }
  void push(std::uint32_t priority, std::uint64_t message);
  void pop();

 private:
  struct Entry {
    std::uint32_t priority;
    std::uint64_t message;
  };
  static bool later(const Entry& a, const Entry& b) noexcept;
  std::vector<Entry> entries_;
};

/// What one peer sends to this rank.
///
/// Threading: thread-compatible.
class ReceiveFlow {
 public:
  explicit ReceiveFlow(const FlowOptions& options);

  void reserve(std::size_t messages);
  /// Errors: kCorruptWire if the number is not the next one, or far too many are open.
  Status announced(std::uint64_t message, const spi::MessageHeader& header);

  /// Takes a buffer; a message without payload is complete at once and its header is returned.
  ///
  /// Errors: kInvalidArgument.
  Result<std::optional<spi::MessageHeader>> accept(std::uint64_t message,
                                                   std::span<std::byte> buffer);

  struct Grant {
    std::uint64_t message = 0;
    std::uint64_t up_to = 0;
  };
  /// Changes how much moves at a time.  What is under way already goes on.
  void set_window(std::size_t bytes) noexcept { window_ = bytes; }
  /// Grants a piece of the most urgent message, if the window has room for it.
  std::optional<Grant> next_grant();

  /// Where the payload of a data frame goes.
  ///
  /// Errors: kWouldBlock for an expected message that is not accepted yet; kCorruptWire for bytes
  ///         that were not granted, or out of order.
  Result<std::byte*> begin_data(const FrameHead& head);

  /// The same for a network that lets fragments of a message overtake each other.
  ///
  /// Errors: kCorruptWire for bytes that were not granted.
  Result<std::byte*> place_of(const FrameHead& head);

  /// Counts bytes that lie in place; returns the header of a message that is thereby complete.
  std::optional<spi::MessageHeader> received(std::uint64_t message, std::size_t bytes);

  /// Credit for expected messages that the sender is to be given; 0 while it has plenty.
  std::size_t take_credit() noexcept;

  /// Messages that were accepted and are not complete.
  std::size_t accepted() const noexcept { return accepted_; }
  /// Messages that were announced and are not complete.
  std::size_t open() const noexcept { return messages_.size(); }
  /// Bytes that were granted and have not come.
  std::size_t outstanding() const noexcept { return outstanding_; }

 private:
  struct Incoming {
    spi::MessageHeader header;
    std::byte* buffer = nullptr;
    std::uint64_t granted = 0;
    std::uint64_t received = 0;
    bool accepted = false;
    bool expected = false;
  };

  std::size_t window_;
  const std::size_t fragment_;
  const bool gives_credit_;
  MessageTable<Incoming> messages_;
  UrgencyHeap grantable_;
  std::uint64_t last_announced_ = 0;
  std::size_t accepted_ = 0;
  std::size_t outstanding_ = 0;
  std::size_t credit_ = 0;  ///< given for expected bytes that have not come
};

/// What this rank sends to one peer.
///
/// Threading: thread-compatible.
class SendFlow {
 public:
  explicit SendFlow(const FlowOptions& options);

  void reserve(std::size_t messages);
  /// Whether another message finds room.
  bool has_room() const noexcept;
  /// Numbers a message and waits for its grants, or for credit if it is expected; one without
  /// payload is only numbered.
  std::uint64_t add(std::uint32_t priority,
                    std::span<const std::byte> payload,
                    std::uint64_t token,
                    bool expected = false);

  /// Takes a grant.
  ///
  /// Errors: kCorruptWire for an unknown message, no progress, or more than there is.
  Status granted(const FrameHead& head);
  /// Takes credit for expected messages.
  ///
  /// Errors: kCorruptWire for more than any window.
  Status credited(std::uint64_t bytes);

  struct Fragment {
    FrameHead head;
    const std::byte* data = nullptr;
    std::uint64_t token = 0;
    bool is_last = false;
  };
  /// Cuts the next fragment of the most urgent message that may move; the caller sends it.
  std::optional<Fragment> next_fragment();

  /// Messages that the peer has begun to let come and that are not wholly cut.
  std::size_t moving() const noexcept { return moving_; }
  /// Messages that are not wholly cut.
  std::size_t open() const noexcept { return messages_.size(); }

 private:
  struct Outgoing {
    const std::byte* payload = nullptr;
    std::uint64_t size = 0;
    std::uint64_t token = 0;
    std::uint64_t granted = 0;
    std::uint64_t sent = 0;
    std::uint32_t priority = 0;
  };

  bool expected_may_move() noexcept;
  Fragment cut(UrgencyHeap& from, std::size_t most);

  const std::size_t fragment_;
  MessageTable<Outgoing> messages_;
  UrgencyHeap sendable_;           ///< with a grant
  UrgencyHeap expected_;           ///< without need of one
  std::uint64_t credit_ = 0;       ///< for expected messages
  std::uint64_t most_credit_ = 0;  ///< that there ever was: the peer's window
  std::uint64_t last_number_ = 0;
  std::size_t moving_ = 0;
};

}  // namespace stretto::transport

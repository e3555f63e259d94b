// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/peer_flow.hpp"
#include "transport/wire.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <sys/uio.h>

namespace stretto::transport {

/// What is on its way out of one connection: control frames, and at most one fragment of payload.
///
/// Control goes before a fragment that has not begun and behind one that has, so a grant waits for
/// one fragment at most.  Payloads are pointed to, not copied.
///
/// Threading: thread-compatible.
/// Cost:      never allocates after construction.
class FrameWriter {
 public:
  static constexpr std::size_t kControlBytes = std::size_t{32} << 10;

  FrameWriter() : control_(kControlBytes) {}

  std::size_t control_room() const noexcept { return kControlBytes - control_size(); }
  /// Adds control bytes for which there is room.
  void append(std::span<const std::byte> bytes) noexcept;

  bool has_fragment() const noexcept { return fragment_left_ > 0; }
  /// Takes a fragment; there is none.
  void start(const SendFlow::Fragment& fragment) noexcept;

  bool empty() const noexcept { return !has_fragment() && control_size() == 0; }
  void clear() noexcept;

  using Parts = std::array<iovec, 4>;
  /// Lists the bytes that go next, for sendmsg; says how many parts there are.
  std::size_t gather(Parts& parts) const noexcept;

  struct Sent {
    std::size_t payload_bytes = 0;
    std::optional<std::uint64_t> finished;  ///< token of a message whose last byte has gone
  };
  /// Says that the system took so many of them.
  Sent advance(std::size_t bytes) noexcept;

 private:
  std::size_t control_size() const noexcept { return control_end_ - control_begin_; }
  std::size_t fragment_done() const noexcept { return fragment_bytes_ - fragment_left_; }
  std::size_t advance_fragment(std::size_t bytes, Sent& sent) noexcept;

  std::vector<std::byte> control_;
  std::size_t control_begin_ = 0;
  std::size_t control_end_ = 0;
  SendFlow::Fragment fragment_;
  FrameHeadBytes head_{};
  std::size_t fragment_bytes_ = 0;  // head and payload together
  std::size_t fragment_left_ = 0;
};

}  // namespace stretto::transport

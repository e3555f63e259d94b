// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/transport.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace stretto::transport {

/// What goes wrong, and when.  Numbers count from 0.  An operation is an announcement made, a
/// message accepted, or an event reported; a plan without faults changes nothing.
struct FaultPlan {
  std::uint64_t seed = 1;
  /// At this operation this rank dies: its inner transport is destroyed, so the others lose it, and
  /// it loses all of them.
  std::optional<std::size_t> die_at;
  /// At this operation this rank, and it alone, loses `lost_peer` (a path that breaks one way).
  std::optional<std::size_t> lose_at;
  Rank lost_peer{0};
  /// One event in so many is held back for 1 to `longest_delay` polls; 0: none.
  std::size_t delay_one_in = 0;
  std::size_t longest_delay = 8;
  /// Other events overtake a delayed one, as far as the contract lets them.
  bool reorder = false;
  /// The announcement with this number is reported twice.
  std::optional<std::size_t> duplicate_announcement;
  /// A bit of the header of this announcement, as this rank sees it, is another one.
  std::optional<std::size_t> flip_header_of;
  /// A bit of the payload of this received message is another one; none if it is empty.
  std::optional<std::size_t> flip_payload_of;

  /// "seed 7, dies at operation 12", for the message of a failed test.
  std::string describe() const;
};

/// Makes `inner` fail as the plan says; for tests.
///
/// Threading: confined(progress).
/// Ownership: with lose_at, payloads and buffers of that peer are copied, so that the caller has
///            its own back at the loss, as promised, though the inner transport goes on.
/// Cost:      allocates; logs the plan at level info once.
std::unique_ptr<spi::Transport> make_faulty_transport(std::unique_ptr<spi::Transport> inner,
                                                      const FaultPlan& plan);

}  // namespace stretto::transport

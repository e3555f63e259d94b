// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/clock.hpp"

#include "stretto/options.hpp"
#include "stretto/spi/transport.hpp"

#include <memory>

namespace stretto::transport {

/// Makes `inner` as slow as a network of one link per rank, without root.
///
/// The model: every rank has one link of `link.bytes_per_second` in each direction, to a switch
/// that adds `link.delay` to whatever crosses it.  Payloads cross in fragments of about 100 us.
/// A rank's egress carries one fragment at a time: the smallest priority first, then the peer that
/// was served longest ago; so a message that is accepted later overtakes between fragments.  At
/// the far side fragments share the ingress in the order of their arrival.  A message alone takes
/// bytes / rate + delay.  As with window and grants of a real transport, a pair has at most 16
/// fragments and a round trip's worth of bytes on the way, so the switch never queues more.
/// A message costs 64 bytes more than its payload; grants are free, but take the delay too.
///
/// Limits: announcements do not queue behind payload; nothing is lost or reordered; the inner
/// transport must be faster than the link.  All ranks must be shaped, by the same link.  On one
/// host the ranks share a clock and lateness of polls (up to 10 ms) is made good; between hosts it
/// is not.  Two hops of the inner transport are added to the delay.
///
/// Threading: confined(progress).
/// Ownership: `clock` outlives the transport; nullptr: the system's.
/// Cost:      one message of the inner transport per fragment, three per message; allocates.
Result<std::unique_ptr<spi::Transport>> make_shaped_transport(std::unique_ptr<spi::Transport> inner,
                                                              const LinkOptions& link,
                                                              const TimeSource* clock = nullptr);

}  // namespace stretto::transport

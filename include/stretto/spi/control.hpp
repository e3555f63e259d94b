// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace stretto::spi {

using Bytes = std::vector<std::byte>;

/// The connections by which ranks found each other, kept open: small agreed blobs, and who lives.
///
/// Threading: thread-safe, but all_gather is called by one thread at a time, in the same order on
/// all
///            ranks.
class ControlPlane {
 public:
  ControlPlane() = default;
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;
  virtual ~ControlPlane() = default;

  virtual Rank rank() const noexcept = 0;
  virtual std::size_t size() const noexcept = 0;

  /// Gives every rank's blob to every rank, by rank.  Small things only: under 64 MiB together.
  ///
  /// `what` names the purpose in errors ("the plan") and must be the same on all ranks.
  /// Blocking: until all have called, or the deadline.
  /// Errors:   kDeadlineExceeded names the ranks that have not called; kPeerLost names the lost
  /// rank;
  ///           kInvalidArgument if ranks call with different purposes.
  virtual Result<std::vector<Bytes>> all_gather(std::string_view what,
                                                std::span<const std::byte> mine,
                                                Deadline deadline) = 0;

  /// Success while every rank lives; else kPeerLost with the first rank that was lost and how.
  /// Never blocks; cheap enough for every turn of a loop.
  virtual Status health() const = 0;

  /// Becomes readable when health() turns bad; -1 if there is nothing to watch.
  virtual int descriptor() const noexcept = 0;

  /// Tells every rank that this one gives up, and why, so that nobody waits for a time-out.
  virtual void abort(const Status& reason) noexcept = 0;

  /// Leaves on purpose: the others do not take it for a loss.  Waits for nobody.
  virtual void leave() noexcept = 0;
};

}  // namespace stretto::spi

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/options.hpp"
#include "stretto/spi/control.hpp"
#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace stretto {

/// All ranks of one job, joined: who they are, and the control connections by which they live.
///
/// Threading: thread-safe.
/// Ownership: outlives the engines made from it.
class Group {
 public:
  /// Finds the others and blocks until all are there.
  ///
  /// Errors: kDeadlineExceeded names the ranks that are missing; kUnavailable for an address that
  /// does
  ///         not resolve or a port that is taken; kInvalidArgument for a wrong token or size.
  static Result<std::shared_ptr<Group>> join(const GroupOptions& options);

  /// As many groups as ranks, all in this process: for tests and for threads as ranks.
  static std::vector<std::shared_ptr<Group>> in_process(std::size_t size);

  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  virtual ~Group() = default;

  virtual Rank rank() const noexcept = 0;
  virtual std::size_t size() const noexcept = 0;
  virtual std::size_t local_rank() const noexcept = 0;
  virtual std::size_t local_size() const noexcept = 0;
  virtual const GroupOptions& options() const noexcept = 0;
  /// Whether the ranks are threads of this process.
  virtual bool is_in_process() const noexcept = 0;
  virtual spi::ControlPlane& control() noexcept = 0;

  /// Leaves on purpose.  Waits for nobody; the others are told.
  virtual void leave() noexcept = 0;

 protected:
  Group() = default;
};

}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/star_plane.hpp"

#include "stretto/group.hpp"

#include <memory>

namespace stretto::rendezvous {

/// A group over control connections, with what only tests look at.
///
/// Threading: thread-safe.
class StarGroup final : public Group {
 public:
  static Result<std::shared_ptr<StarGroup>> join(const GroupOptions& options);

  StarGroup(GroupOptions options, std::unique_ptr<StarPlane> plane)
      : options_(std::move(options)), plane_(std::move(plane)) {}

  Rank rank() const noexcept override { return Rank{static_cast<std::uint32_t>(options_.rank)}; }
  std::size_t size() const noexcept override { return options_.size; }
  std::size_t local_rank() const noexcept override { return options_.local_rank; }
  std::size_t local_size() const noexcept override { return options_.local_size; }
  const GroupOptions& options() const noexcept override { return options_; }
  bool is_in_process() const noexcept override { return false; }
  spi::ControlPlane& control() noexcept override { return *plane_; }
  void leave() noexcept override { plane_->leave(); }

  std::uint64_t refused() const noexcept { return plane_->refused(); }

 private:
  GroupOptions options_;
  std::unique_ptr<StarPlane> plane_;
};

/// The group of one rank, without sockets and threads.
std::shared_ptr<Group> make_group_of_one(const GroupOptions& options);

}  // namespace stretto::rendezvous

// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/join.hpp"

#include "base/fault_point.hpp"
#include "base/log.hpp"
#include "rendezvous/hub.hpp"
#include "rendezvous/socket.hpp"
#include "rendezvous/spoke.hpp"

#include <chrono>
#include <string>

namespace stretto {
namespace rendezvous {
namespace {

/// Rank 0 knows who is missing and says so at its deadline; the others hear it before their own.
constexpr std::chrono::milliseconds kGrace{2'000};

Result<std::unique_ptr<StarPlane>> make_plane(const GroupOptions& options, Deadline deadline) {
  fault_point("rendezvous.begin", options.rank);
  if (options.rank == 0) {
    STRETTO_TRY_ASSIGN(FileDescriptor listener,
                       listen_for_ranks(options.master_address, options.master_port, deadline));
    if (options.token.empty() && is_open_to_others(listener.get())) {
      log(LogLevel::kWarning,
          "no token is set, and other hosts reach port " + std::to_string(options.master_port) +
              ": whoever does can pass for a rank; set STRETTO_TOKEN to the same secret for all "
              "ranks");
    }
    STRETTO_TRY_ASSIGN(auto hub, Hub::make(options, std::move(listener), deadline));
    return std::unique_ptr<StarPlane>(std::move(hub));
  }
  STRETTO_TRY_ASSIGN(auto spoke, Spoke::make(options, deadline));
  return std::unique_ptr<StarPlane>(std::move(spoke));
}

}  // namespace

Result<std::shared_ptr<StarGroup>> StarGroup::join(const GroupOptions& options) {
  const Deadline deadline = Deadline::after(options.timeout);
  STRETTO_TRY_ASSIGN(auto plane, make_plane(options, deadline));
  STRETTO_TRY(plane->wait_joined(Deadline(deadline.when() + kGrace)));
  fault_point("rendezvous.joined", options.rank);
  return std::make_shared<StarGroup>(options, std::move(plane));
}

}  // namespace rendezvous

Result<std::shared_ptr<Group>> Group::join(const GroupOptions& options) {
  STRETTO_TRY(options.validate());
  if (options.size == 1) {
    return rendezvous::make_group_of_one(options);
  }
  STRETTO_TRY_ASSIGN(auto group, rendezvous::StarGroup::join(options));
  return std::shared_ptr<Group>(std::move(group));
}

}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"
#include "collective/host_communicator.hpp"
#include "collective/transport_communicator.hpp"

#include <utility>

namespace stretto {

Result<std::unique_ptr<Communicator>> Communicator::create(std::shared_ptr<Group> group,
                                                           const EngineOptions& options) {
  STRETTO_TRY(options.validate());
  if (group == nullptr) {
    return fail(StatusCode::kInvalidArgument,
                "a communicator needs a group; call Group::join first");
  }
  const Deadline deadline = Deadline::after(group->options().timeout);
  const bool wanted = options.exchange == ExchangeKind::kShared;
  if (wanted && options.link.emulated()) {
    return fail(
        StatusCode::kUnsupported,
        "under an emulated link every rank counts as a host of its own; choose the exchange "
        "owner, or no link");
  }
  if (wanted || (options.exchange == ExchangeKind::kAuto && !options.link.emulated())) {
    auto host = exchange::Host::meet(group->control(), group->local_size(), deadline);
    if (host) {
      return collective::HostCommunicator::make(
          std::move(group), options, std::move(*host), deadline);
    }
    if (wanted || host.error().code() != StatusCode::kUnsupported) {
      return fail(host.error());
    }
    log(LogLevel::kInfo, "collectives go through the transport: " + host.error().to_string());
  }
  return collective::TransportCommunicator::make(std::move(group), options);
}

}  // namespace stretto

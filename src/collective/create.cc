// SPDX-License-Identifier: Apache-2.0
#include "base/byte_order.hpp"
#include "base/log.hpp"
#include "collective/host_communicator.hpp"
#include "collective/transport_communicator.hpp"

#include <array>
#include <string>
#include <utility>

namespace stretto {
namespace {

struct Setting {
  const char* name;
  std::string value;
};

/// What ranks count on of each other without asking.
std::array<Setting, 5> shared_settings(const EngineOptions& options) {
  return {{{"exchange", std::string(to_string(options.exchange))},
           {"order of sums", std::string(to_string(options.order))},
           {"chunk size", std::to_string(options.chunk_bytes)},
           {"one-hop size", std::to_string(options.one_hop_bytes)},
           {"scratch size", std::to_string(options.scratch_bytes)}}};
}

Status agree_on_settings(spi::ControlPlane& control,
                         const EngineOptions& options,
                         Deadline deadline) {
  const auto mine = shared_settings(options);
  ByteWriter writer;
  for (const Setting& setting : mine) {
    writer.put_text(setting.value);
  }
  STRETTO_TRY_ASSIGN(const auto blobs,
                     control.all_gather("the options of a communicator", writer.bytes(), deadline));
  for (std::size_t rank = 1; rank < blobs.size(); ++rank) {
    ByteReader first(blobs[0]);
    ByteReader other(blobs[rank]);
    for (const Setting& setting : mine) {
      const std::string a = first.get_text();
      const std::string b = other.get_text();
      if (a != b) {
        return {StatusCode::kInvalidArgument,
                "the " + std::string(setting.name) + " of a communicator is " + a +
                    " on rank 0 and " + b + " on rank " + std::to_string(rank) +
                    "; all ranks must create it with the same options"};
      }
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::create(std::shared_ptr<Group> group,
                                                           const EngineOptions& options) {
  STRETTO_TRY(options.validate());
  if (group == nullptr) {
    return fail(StatusCode::kInvalidArgument,
                "a communicator needs a group; call Group::join first");
  }
  const Deadline deadline = Deadline::after(group->options().timeout);
  STRETTO_TRY(agree_on_settings(group->control(), options, deadline));
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

// SPDX-License-Identifier: Apache-2.0
// The one list of compiled-in back ends: a new transport, device or exchange adds one line here.
#include "registry/registry.hpp"

#include "base/byte_order.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/random.hpp"
#include "device/cpu/factory.hpp"
#include "exchange/factory.hpp"
#include "exchange/mpi/factory.hpp"
#include "exchange/shared/factory.hpp"
#include "transport/decorators/shaped_transport.hpp"
#include "transport/inproc/inproc_transport.hpp"
#include "transport/tcp/factory.hpp"
#include "transport/ucx/factory.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

namespace stretto::registry {
namespace {

/// A number that only this job's ranks know: rank 0 draws it.
Result<std::uint64_t> agree_on_job(Group& group) {
  ByteWriter writer;
  writer.put(random_number());
  STRETTO_TRY_ASSIGN(
      const auto blobs,
      group.control().all_gather(
          "the transport", writer.bytes(), Deadline::after(group.options().timeout)));
  return ByteReader(blobs[0]).get<std::uint64_t>();
}

/// Ranks of one process find one another by the job's number; the first to come makes all ends.
class InprocMeeting {
 public:
  Result<std::unique_ptr<spi::Transport>> take(std::uint64_t job, Rank rank, std::size_t size) {
    MutexLock lock(mutex_);
    auto found = ends_.find(job);
    if (found == ends_.end()) {
      STRETTO_TRY_ASSIGN(auto made, transport::make_inproc_transports(size));
      found = ends_.emplace(job, std::move(made)).first;
    }
    auto mine = std::move(found->second[index_of(rank)]);
    if (std::none_of(found->second.begin(), found->second.end(), [](const auto& end) {
          return end != nullptr;
        })) {
      ends_.erase(found);
    }
    return mine;
  }

 private:
  Mutex mutex_;
  std::map<std::uint64_t, std::vector<std::unique_ptr<spi::Transport>>> ends_
      STRETTO_GUARDED_BY(mutex_);
};

InprocMeeting& inproc_meeting() {
  static auto& meeting = *new InprocMeeting;  // never destroyed: ranks may outlive main
  return meeting;
}

Result<std::unique_ptr<spi::Transport>> make_tcp(Group& group, std::uint64_t job) {
  transport::TcpOptions tcp;
  tcp.interface = group.options().interface;
  tcp.route_to = group.is_in_process() ? "" : group.options().master_address;
  tcp.first_port = group.options().first_port;
  tcp.token = group.options().token;
  tcp.job_id = job;
  tcp.timeout = group.options().timeout;
  return transport::make_tcp_transport(group.control(), tcp);
}

Result<std::unique_ptr<spi::Transport>> make_ucx(Group& group, std::uint64_t job) {
  transport::UcxOptions ucx;
  ucx.interface = group.options().interface;
  ucx.job_id = job;
  ucx.timeout = group.options().timeout;
  return transport::make_ucx_transport(group.control(), ucx);
}

Result<std::unique_ptr<spi::Transport>> make_plain_transport(Group& group,
                                                             const EngineOptions& options,
                                                             std::uint64_t job) {
  if (options.transport == "ucx") {
    return make_ucx(group, job);
  }
  const bool inproc =
      options.transport == "inproc" || (options.transport == "auto" && group.is_in_process());
  if (!inproc) {
    return make_tcp(group, job);
  }
  if (!group.is_in_process() && group.size() > 1) {
    return fail(StatusCode::kUnsupported,
                "transport inproc is for ranks that are threads of one process; choose tcp");
  }
  return inproc_meeting().take(job, group.rank(), group.size());
}

/// The shared exchange where it was asked for, or where it can be had and nothing else was; else
/// null.  What decides is the same on all ranks, so that all decide the same.
Result<std::unique_ptr<spi::Exchange>> make_shared(Group& group,
                                                   spi::Device& device,
                                                   const EngineOptions& options) {
  const bool wanted = options.exchange == ExchangeKind::kShared;
  if (wanted && options.link.emulated()) {
    return fail(
        StatusCode::kUnsupported,
        "under an emulated link every rank counts as a host of its own; choose the exchange "
        "owner, or no link");
  }
  if (!wanted &&
      (options.exchange != ExchangeKind::kAuto || options.link.emulated() || group.size() == 1)) {
    return nullptr;
  }
  exchange::SharedOptions shared;
  shared.local_size = group.local_size();
  shared.timeout = group.options().timeout;
  auto made = exchange::make_shared_exchange(group.control(), device, shared);
  if (!made && !wanted && made.error().code() == StatusCode::kUnsupported) {
    log(LogLevel::kInfo, "gradients go through the transport: " + made.error().to_string());
    return nullptr;
  }
  return made;
}

Result<std::unique_ptr<spi::Exchange>> make_mpi(Group& group,
                                                spi::Device& device,
                                                const EngineOptions& options) {
  if (options.link.emulated()) {
    return fail(StatusCode::kUnsupported,
                "MPI's bytes do not pass through an emulated link; choose the exchange owner or "
                "ring, or no link");
  }
  if (group.is_in_process() && group.size() > 1) {
    return fail(StatusCode::kUnsupported,
                "the exchange mpi is for ranks that are processes; choose owner");
  }
  return exchange::make_mpi_exchange(group.control(), device, {group.options().timeout});
}

std::atomic<DeviceFactory> device_for_tests{nullptr};  // NOLINT: a seam for tests

}  // namespace

Result<std::unique_ptr<spi::Transport>> make_transport(Group& group, const EngineOptions& options) {
  STRETTO_TRY_ASSIGN(const std::uint64_t job, agree_on_job(group));
  STRETTO_TRY_ASSIGN(auto transport, make_plain_transport(group, options, job));
  if (!options.link.emulated()) {
    return transport;
  }
  return transport::make_shaped_transport(std::move(transport), options.link);
}

void replace_device_for_tests(DeviceFactory factory) {
  device_for_tests.store(factory);
}

Result<std::unique_ptr<spi::Device>> make_device(const EngineOptions& options) {
  if (const DeviceFactory factory = device_for_tests.load()) {
    return factory();
  }
  return device::make_cpu_device(options.reduction_threads);
}

Result<std::unique_ptr<spi::Device>> make_coding_device() {
  if (const DeviceFactory factory = device_for_tests.load()) {
    return factory();
  }
  return device::make_cpu_device(1);
}

namespace {

Result<std::unique_ptr<spi::Exchange>> make_any_exchange(Group& group,
                                                         spi::Transport& transport,
                                                         spi::Device& device,
                                                         spi::Device* coding_device,
                                                         const EngineOptions& options) {
  if (options.exchange == ExchangeKind::kRing) {
    return exchange::make_ring_exchange(transport, device, {options.scratch_bytes});
  }
  if (options.exchange == ExchangeKind::kMpi) {
    return make_mpi(group, device, options);
  }
  if (coding_device == nullptr || options.exchange == ExchangeKind::kShared) {
    STRETTO_TRY_ASSIGN(auto shared, make_shared(group, device, options));
    if (shared != nullptr) {
      return shared;
    }
  }
  exchange::OwnerOptions owner;
  owner.one_hop_bytes =
      options.exchange == ExchangeKind::kOneHop ? SIZE_MAX : options.one_hop_bytes;
  owner.scratch_bytes = options.scratch_bytes;
  owner.coding_device = coding_device;
  owner.coding_streams = coding_device == nullptr ? 0 : options.codec_threads;
  return exchange::make_owner_exchange(transport, device, owner);
}

}  // namespace

Result<std::unique_ptr<spi::Exchange>> make_exchange(Group& group,
                                                     spi::Transport& transport,
                                                     spi::Device& device,
                                                     spi::Device* coding_device,
                                                     const EngineOptions& options) {
  STRETTO_TRY_ASSIGN(auto made,
                     make_any_exchange(group, transport, device, coding_device, options));
  if (coding_device != nullptr && !made->traits().codecs) {
    return fail(StatusCode::kInvalidArgument,
                "the exchange " + made->traits().name +
                    " takes no codec; choose owner (or auto), or the codec none");
  }
  if (made->traits().order == spi::SumOrder::kNative && options.order != OrderChoice::kAny) {
    return fail(StatusCode::kInvalidArgument,
                "the exchange " + made->traits().name +
                    " adds in an order of its own; set STRETTO_ORDER=any (--order any) to allow "
                    "that, or choose owner");
  }
  return made;
}

}  // namespace stretto::registry

// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/worker.hpp"

#include <array>
#include <cstdlib>
#include <cstring>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

namespace stretto::transport {
namespace {

using Config = std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)>;

bool is_address(const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  return ::inet_pton(AF_INET, text.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1;
}

/// UCX knows interfaces by name only.
Result<std::string> name_of_interface(const std::string& interface) {
  if (!is_address(interface)) {
    return interface;
  }
  ifaddrs* list = nullptr;
  static_cast<void>(::getifaddrs(&list));
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) {
      continue;
    }
    const int family = entry->ifa_addr->sa_family;
    const socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    std::array<char, NI_MAXHOST> text{};
    if ((family == AF_INET || family == AF_INET6) &&
        ::getnameinfo(
            entry->ifa_addr, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0 &&
        interface == text.data()) {
      return std::string(entry->ifa_name);
    }
  }
  return fail(StatusCode::kUnavailable,
              "no interface of this host has the address " + interface +
                  "; `stretto doctor` lists those that there are");
}

Status set(ucp_config_t* config, const std::string& name, const std::string& value) {
  const ucs_status_t status = ucp_config_modify(config, name.c_str(), value.c_str());
  if (status != UCS_OK) {
    return ucx_error(
        StatusCode::kUnavailable, "UCX refuses the setting " + name + "=" + value, status);
  }
  return {};
}

/// What the user has set in the environment stays.
Status set_unless_chosen(ucp_config_t* config, const std::string& name, const std::string& value) {
  return std::getenv(("UCX_" + name).c_str()) != nullptr ? Status() : set(config, name, value);
}

Status configure(ucp_config_t* config, const UcxOptions& options) {
  // Endpoints that notice a dead peer cannot use shared memory, and its files would outlive kill
  // -9.
  STRETTO_TRY(set_unless_chosen(config, "TLS", "^sm"));
  STRETTO_TRY(set_unless_chosen(
      config, "KEEPALIVE_INTERVAL", std::to_string(options.keepalive.count()) + "ms"));
  if (!options.interface.empty()) {
    STRETTO_TRY_ASSIGN(const std::string name, name_of_interface(options.interface));
    STRETTO_TRY(set_unless_chosen(config, "NET_DEVICES", name));
  }
  for (const auto& [name, value] : options.settings) {
    STRETTO_TRY(set(config, name, value));
  }
  return {};
}

}  // namespace

Status ucx_error(StatusCode code, const std::string& what, ucs_status_t status) {
  return {code, what + ": " + ucs_status_string(status)};
}

Status UcxOptions::validate() const {
  if (timeout.count() <= 0 || keepalive.count() <= 0) {
    return {StatusCode::kInvalidArgument, "the time-outs must be longer than zero"};
  }
  return {};
}

std::optional<std::string> ucx_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
}

Result<std::unique_ptr<UcxWorker>> UcxWorker::make(const UcxOptions& options, std::size_t size) {
  std::unique_ptr<UcxWorker> worker(new UcxWorker);
  STRETTO_TRY(worker->open_context(options, size));
  STRETTO_TRY(worker->open_worker());
  return worker;
}

UcxWorker::~UcxWorker() {
  if (worker_ != nullptr) {
    ucp_worker_destroy(worker_);
  }
  if (context_ != nullptr) {
    ucp_cleanup(context_);
  }
}

Status UcxWorker::open_context(const UcxOptions& options, std::size_t size) {
  ucp_config_t* read = nullptr;
  const ucs_status_t status = ucp_config_read(nullptr, nullptr, &read);
  if (status != UCS_OK) {
    return ucx_error(
        StatusCode::kUnavailable, "UCX cannot read its settings (UCX_... variables)", status);
  }
  const Config config(read, &ucp_config_release);
  STRETTO_TRY(configure(config.get(), options));

  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.estimated_num_eps = size;
  const ucs_status_t opened = ucp_init(&params, config.get(), &context_);
  if (opened != UCS_OK) {
    return ucx_error(
        StatusCode::kUnavailable,
        "UCX finds no network" +
            (options.interface.empty() ? std::string() : " on '" + options.interface + "'") +
            "; name another interface, or choose the transport tcp",
        opened);
  }
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (ucp_context_query(context_, &attributes) == UCS_OK) {
    takes_device_memory_ = (attributes.memory_types & ~UCS_BIT(UCS_MEMORY_TYPE_HOST)) != 0;
  }
  return {};
}

Status UcxWorker::open_worker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // made by one thread, used by another
  params.flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;
  ucs_status_t status = ucp_worker_create(context_, &params, &worker_);
  if (status == UCS_OK) {
    status = ucp_worker_get_efd(worker_, &descriptor_);
  }
  if (status != UCS_OK) {
    return ucx_error(StatusCode::kUnavailable, "UCX cannot open its devices", status);
  }
  return {};
}

void UcxWorker::wait(std::chrono::milliseconds most) noexcept {
  if (!progress() && arm()) {
    pollfd descriptor{descriptor_, POLLIN, 0};
    static_cast<void>(::poll(&descriptor, 1, static_cast<int>(most.count())));
  }
}

Result<spi::Bytes> UcxWorker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t size = 0;
  const ucs_status_t status = ucp_worker_get_address(worker_, &address, &size);
  if (status != UCS_OK) {
    return fail(ucx_error(StatusCode::kUnavailable, "UCX has no address for its peers", status));
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(address);
  spi::Bytes copy(bytes, bytes + size);
  ucp_worker_release_address(worker_, address);
  return copy;
}

}  // namespace stretto::transport

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/ucx/factory.hpp"

#include "stretto/spi/control.hpp"
#include "stretto/status.hpp"

#include <chrono>
#include <memory>
#include <string>

#include <ucp/api/ucp.h>

namespace stretto::transport {

/// A sentence about what UCX said.
Status ucx_error(StatusCode code, const std::string& what, ucs_status_t status);

/// UCX's context and worker, set up as Stretto needs them.
///
/// Threading: confined(progress), and before that its maker's.
class UcxWorker {
 public:
  /// Errors: kUnavailable for an interface, a device or a setting that UCX refuses.
  static Result<std::unique_ptr<UcxWorker>> make(const UcxOptions& options, std::size_t size);
  /// Ends all that is under way; talks to nobody.
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h get() const noexcept { return worker_; }
  /// Readable when progress has something to do, from the last successful arm() on.
  int descriptor() const noexcept { return descriptor_; }
  /// Has the descriptor speak; false if there is something to do now.
  bool arm() noexcept { return ucp_worker_arm(worker_) != UCS_ERR_BUSY; }
  /// Moves what can move; false if nothing did.
  bool progress() noexcept { return ucp_worker_progress(worker_) != 0; }
  /// Sleeps until there is something to do, and does it.
  void wait(std::chrono::milliseconds most) noexcept;

  /// Where peers reach this worker.
  Result<spi::Bytes> address() const;
  /// Whether payloads may lie in device memory.
  bool takes_device_memory() const noexcept { return takes_device_memory_; }

 private:
  UcxWorker() = default;
  Status open_context(const UcxOptions& options, std::size_t size);
  Status open_worker();

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;
  bool takes_device_memory_ = false;
};

}  // namespace stretto::transport

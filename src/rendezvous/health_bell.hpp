// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"
#include "base/mutex.hpp"

#include "stretto/status.hpp"

#include <atomic>

namespace stretto::rendezvous {

/// Remembers the first loss and makes a descriptor readable for it.
///
/// Threading: thread-safe.
/// Cost:      health() is one atomic load while all is well.
class HealthBell {
 public:
  static Result<HealthBell> make();

  HealthBell(HealthBell&& other) noexcept;  // only before it is shared

  Status health() const;
  bool is_bad() const noexcept { return bad_.load(std::memory_order_acquire); }
  int descriptor() const noexcept { return event_.get(); }

  /// The first call counts, later ones do nothing.
  void ring(const Status& status);

 private:
  explicit HealthBell(FileDescriptor event) : event_(std::move(event)) {}

  FileDescriptor event_;
  std::atomic<bool> bad_{false};  // release in ring, acquire in is_bad: status_ is written before
  mutable Mutex mutex_;
  Status status_ STRETTO_GUARDED_BY(mutex_);
};

}  // namespace stretto::rendezvous

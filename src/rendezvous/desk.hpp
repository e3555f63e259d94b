// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/mutex.hpp"
#include "base/waker.hpp"
#include "rendezvous/frame.hpp"
#include "rendezvous/health_bell.hpp"

#include "stretto/spi/control.hpp"
#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stretto::rendezvous {

/// What the control thread is asked to do.
struct Requests {
  std::optional<GatherCall> gather;
  std::optional<std::uint64_t> ask_missing;
  std::optional<std::string> abort;
  bool say_goodbye = false;
  bool stop = false;
};

/// Where callers leave requests for the control thread and wait for what comes of them.
///
/// Threading: thread-safe.
class Desk {
 public:
  Desk(std::size_t rank, Waker waker, HealthBell bell)
      : rank_(rank), waker_(std::move(waker)), bell_(std::move(bell)) {}

  const HealthBell& bell() const noexcept { return bell_; }
  Waker& waker() noexcept { return waker_; }

  // Callers' side.
  /// Blocks until all ranks are there, joining has failed, or the deadline.
  Status wait_joined(Deadline deadline);
  Result<std::vector<spi::Bytes>> gather(std::string_view what,
                                         std::span<const std::byte> mine,
                                         Deadline deadline);
  /// Returns when the control thread has sent it (or does not come to it for half a second).
  void request_abort(std::string text);
  enum class Goodbye { kSay, kSkip };
  void request_stop(Goodbye goodbye);

  // The control thread's side.
  bool has_requests() const;
  Requests take();
  void joined();
  /// While ranks gather: who is missing.
  void awaiting(std::string ranks);
  void gathered(std::uint64_t sequence, std::vector<spi::Bytes> blobs);
  /// No gather (or no joining) can succeed from here on.  The first call counts.
  void broken(Status status);
  void still_missing(std::uint64_t sequence, std::string ranks);
  void lost(const Status& status);
  void abort_sent();

 private:
  Result<std::vector<spi::Bytes>> wait_gathered(std::string_view what, Deadline deadline)
      STRETTO_REQUIRES(mutex_);

  const std::size_t rank_;
  Waker waker_;
  HealthBell bell_;
  mutable Mutex mutex_;
  ConditionVariable changed_;
  Requests requests_ STRETTO_GUARDED_BY(mutex_);
  bool joined_ STRETTO_GUARDED_BY(mutex_) = false;
  bool stopped_ STRETTO_GUARDED_BY(mutex_) = false;
  bool abort_sent_ STRETTO_GUARDED_BY(mutex_) = false;
  std::string awaited_ STRETTO_GUARDED_BY(mutex_);
  std::uint64_t sequence_ STRETTO_GUARDED_BY(mutex_) = 0;
  std::optional<std::vector<spi::Bytes>> outcome_ STRETTO_GUARDED_BY(mutex_);
  std::optional<std::string> missing_ STRETTO_GUARDED_BY(mutex_);
  Status broken_ STRETTO_GUARDED_BY(mutex_);
};

}  // namespace stretto::rendezvous

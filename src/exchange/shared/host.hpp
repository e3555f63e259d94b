// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"
#include "exchange/shared/descriptor_socket.hpp"
#include "exchange/shared/mapping.hpp"

#include "stretto/spi/control.hpp"
#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace stretto::exchange {

/// The ranks of a group that are on one host and can map each other's memory.
///
/// A host's name proves nothing.  Ranks are on one host if the launcher put them there (the local
/// size is the group's) and if each could hand its memory to each other and read a number back
/// through it. Descriptors travel through a DescriptorSocket, whose secret travels over the control
/// connections.
///
/// Threading: confined(one thread at a time); `wake` writes only to what other ranks share.
/// Ownership: `control` outlives it.
class Host {
 public:
  /// All ranks call it together, and all fail or all succeed.
  ///
  /// Blocking: until all have, or the deadline.    Errors: kUnsupported if the ranks are not on one
  /// host, with the reason; what `control` says.
  static Result<std::unique_ptr<Host>> meet(spi::ControlPlane& control,
                                            std::size_t local_size,
                                            Deadline deadline);

  std::size_t rank() const noexcept { return index_of(control_.rank()); }
  std::size_t size() const noexcept { return control_.size(); }
  spi::ControlPlane& control() const noexcept { return control_; }

  /// What a rank has handed over, in its order; nothing of this rank.
  struct Handed {
    std::vector<Mapping> memory;
    std::vector<std::uint32_t> gone;
  };

  /// Gives every rank's memory to every rank; all call it together.  `mine` may differ in number
  /// and size.  Along go the numbers of what a rank has let go.  The result is by rank.
  ///
  /// `ready` says whether this rank could make its memory; if one could not, all get its error.
  /// Blocking: until all have called, or the deadline.
  Result<std::vector<Handed>> share(const Status& ready,
                                    std::span<const Mapping* const> mine,
                                    Mapping::Touch touch,
                                    Deadline deadline,
                                    std::span<const std::uint32_t> gone = {});

  /// Messages of strangers to the socket by which memory is handed over.
  std::uint64_t refused() const noexcept { return socket_.refused(); }

  /// Readable after a wake() that followed arm().
  int descriptor() const noexcept { return bells_[rank()].get(); }
  /// This rank is about to sleep; look for work once more after it.
  void arm() noexcept;
  /// This rank is awake.
  void disarm() noexcept;
  /// After publishing work for a rank: costs a system call only if it sleeps.
  void wake(std::size_t rank) noexcept;

  /// This rank works on the core that it runs on now.  Costs a few nanoseconds.
  void show_core() noexcept;
  /// Moves the calling thread off a core on which a rank of a lower number works, if it is allowed
  /// on one where no rank does; at most every 5 ms.  Which cores it is allowed on stays as it was.
  /// For a rank that waits without sleeping: who sleeps is placed by the system.  Returns whether
  /// it moved.
  bool leave_shared_core(TimePoint now) noexcept;

 private:
  /// What a rank shows to the others.
  struct Signs {
    alignas(64) std::atomic<std::uint32_t> sleeps{0};
    alignas(64) std::atomic<std::uint32_t> core{0};  ///< its number + 1; 0: not yet shown
  };
  explicit Host(spi::ControlPlane& control) : control_(control) {}

  Status open_socket();
  Status share_bells(Deadline deadline);
  Result<std::vector<std::vector<FileDescriptor>>> swap_descriptors(
      std::span<const int> mine, std::span<const std::size_t> expected, Deadline deadline);
  Result<bool> send_to(std::size_t rank, std::span<const int> descriptors) const;
  Signs& signs_of(std::size_t rank) const noexcept;
  /// Success if all ranks say so, else the first one's error.
  Status agree(const Status& mine, Deadline deadline) const;

  spi::ControlPlane& control_;
  DescriptorSocket socket_;
  std::vector<DescriptorSocket::Address> addresses_;  ///< by rank
  std::uint32_t round_ = 0;
  std::vector<FileDescriptor> bells_;  ///< eventfds, by rank
  std::vector<Mapping> signs_;         ///< by rank: a Signs each
  bool armed_ = false;
  TimePoint next_move_ = TimePoint::min();
};

}  // namespace stretto::exchange

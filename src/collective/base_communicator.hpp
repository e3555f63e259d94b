// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collective/call.hpp"

#include "stretto/collective.hpp"
#include "stretto/group.hpp"
#include "stretto/options.hpp"
#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace stretto::collective {

/// What all communicators share: the public calls, checked and turned into jobs and messages.
///
/// Threading: thread-compatible.
class BaseCommunicator : public Communicator {
 public:
  std::size_t rank() const noexcept final { return index_of(group_->rank()); }
  std::size_t size() const noexcept final { return group_->size(); }

  Result<Collective> all_reduce(const std::byte* input,
                                std::byte* output,
                                std::size_t count,
                                DType dtype,
                                Reduction reduction) final;
  Result<Collective> reduce_scatter(const std::byte* input,
                                    std::byte* output,
                                    std::size_t count,
                                    DType dtype,
                                    Reduction reduction) final;
  Result<Collective> all_gather(const std::byte* input, std::byte* output, std::size_t bytes) final;
  Result<Collective> broadcast(std::byte* data, std::size_t bytes, std::size_t root) final;
  Result<Collective> barrier() final;
  Result<Collective> send(const std::byte* data, std::size_t bytes, std::size_t peer) final;
  Result<Collective> receive(std::byte* data, std::size_t bytes, std::size_t peer) final;

 protected:
  BaseCommunicator(std::shared_ptr<Group> group, const EngineOptions& options)
      : group_(std::move(group)), options_(options) {}

  /// Takes a job on as this rank's next collective; returns its number.
  virtual std::uint64_t start(const Job& job) = 0;
  /// Takes a message on; returns its MessageNumber.  `peer` is another rank.
  virtual std::uint64_t start_send(const std::byte* data, std::size_t bytes, std::size_t peer) = 0;
  virtual std::uint64_t start_receive(std::byte* data, std::size_t bytes, std::size_t peer) = 0;

  /// Two ranks call differently.
  Status mismatch(std::uint64_t number,
                  const Call& own,
                  std::size_t peer,
                  const Call& theirs) const;
  Status not_ended(std::uint64_t number) const;

  std::shared_ptr<Group> group_;  // shared with the caller and whatever else was made from it
  EngineOptions options_;
  Status error_;  ///< the first one; every later call returns it

 private:
  Result<Collective> start_job(const Job& job);
  Status check_peer(std::size_t peer) const;
};

}  // namespace stretto::collective

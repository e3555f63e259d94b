// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collective/call.hpp"
#include "collective/sub_group.hpp"

#include "stretto/collective.hpp"
#include "stretto/group.hpp"
#include "stretto/options.hpp"
#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

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
  Result<std::unique_ptr<Communicator>> split(std::optional<std::uint32_t> color,
                                              std::int64_t key) final;
  Result<Collective> send(const std::byte* data, std::size_t bytes, std::size_t peer) final;
  Result<Collective> receive(std::byte* data, std::size_t bytes, std::size_t peer) final;
  Status close(Deadline deadline) final;

 protected:
  BaseCommunicator(std::shared_ptr<Group> group, const EngineOptions& options)
      : group_(std::move(group)),
        options_(for_collectives(options)),
        members_(members_of(*group_)) {}

  /// Takes a job on as this rank's next collective; returns its number.
  virtual std::uint64_t start(const Job& job) = 0;
  /// Takes a message on; returns its MessageNumber.  `peer` is another rank.
  virtual std::uint64_t start_send(const std::byte* data, std::size_t bytes, std::size_t peer) = 0;
  virtual std::uint64_t start_receive(std::byte* data, std::size_t bytes, std::size_t peer) = 0;
  /// Flushes what others still have to come from here.
  virtual Status leave(Deadline deadline) = 0;

  /// Two ranks call differently.
  Status mismatch(std::uint64_t number,
                  const Call& own,
                  std::size_t peer,
                  const Call& theirs) const;
  Status not_ended(std::uint64_t number) const;

  /// In a sub-group: the same error, with what its ranks are in the whole group.
  Status located(Status status) const;

  std::shared_ptr<Group> group_;  // shared with the caller and whatever else was made from it
  EngineOptions options_;
  Status error_;  ///< the first one; every later call returns it

 private:
  Result<Collective> start_job(const Job& job);
  Status check_peer(std::size_t peer) const;

  bool closed_ = false;
  std::vector<std::size_t> members_;  ///< by rank, in the whole group; empty: this is it
};

}  // namespace stretto::collective

// SPDX-License-Identifier: Apache-2.0
#include "collective/base_communicator.hpp"

#include "rendezvous/words.hpp"

#include <string>

namespace stretto::collective {
namespace {

std::string name_of(std::size_t rank) {
  return "rank " + std::to_string(rank);
}

}  // namespace

Result<Collective> BaseCommunicator::all_reduce(const std::byte* input,
                                                std::byte* output,
                                                std::size_t count,
                                                DType dtype,
                                                Reduction reduction) {
  return start_job({{Kind::kAllReduce, dtype, reduction, 0, count}, input, output});
}

Result<Collective> BaseCommunicator::reduce_scatter(const std::byte* input,
                                                    std::byte* output,
                                                    std::size_t count,
                                                    DType dtype,
                                                    Reduction reduction) {
  return start_job({{Kind::kReduceScatter, dtype, reduction, 0, count}, input, output});
}

Result<Collective> BaseCommunicator::all_gather(const std::byte* input,
                                                std::byte* output,
                                                std::size_t bytes) {
  Job job{{}, input, output};
  job.call.kind = Kind::kAllGather;
  job.call.count = bytes;
  return start_job(job);
}

Result<Collective> BaseCommunicator::broadcast(std::byte* data,
                                               std::size_t bytes,
                                               std::size_t root) {
  if (root >= size()) {
    return fail(StatusCode::kInvalidArgument,
                name_of(root) + " cannot be the root of a broadcast; there are " +
                    std::to_string(size()) + " ranks");
  }
  Job job{{}, data, data};
  job.call.kind = Kind::kBroadcast;
  job.call.count = bytes;
  job.call.root = static_cast<std::uint32_t>(root);
  return start_job(job);
}

Result<Collective> BaseCommunicator::barrier() {
  return start_job({});
}

Result<std::unique_ptr<Communicator>> BaseCommunicator::split(std::optional<std::uint32_t> color,
                                                              std::int64_t key) {
  STRETTO_TRY(error_);
  auto part = SubGroup::split(group_, options_, color, key);
  if (!part) {
    return fail(located(part.error()));
  }
  if (*part == nullptr) {
    return nullptr;
  }
  return create(std::move(*part), options_);
}

Status BaseCommunicator::close(Deadline deadline) {
  if (closed_) {
    return {};
  }
  STRETTO_TRY(error_);
  closed_ = true;
  Status left = located(leave(deadline));
  error_ = {StatusCode::kInvalidArgument,
            name_of(rank()) + " has closed this communicator; make another"};
  return left;
}

Result<Collective> BaseCommunicator::start_job(const Job& job) {
  STRETTO_TRY(error_);
  return Collective(this, start(job));
}

Status BaseCommunicator::check_peer(std::size_t peer) const {
  STRETTO_TRY(error_);
  if (peer >= size() || peer == rank()) {
    return {StatusCode::kInvalidArgument,
            name_of(rank()) + " of " + std::to_string(size()) + " cannot exchange messages with " +
                name_of(peer)};
  }
  return {};
}

Result<Collective> BaseCommunicator::send(const std::byte* data,
                                          std::size_t bytes,
                                          std::size_t peer) {
  STRETTO_TRY(check_peer(peer));
  return Collective(this, start_send(data, bytes, peer));
}

Result<Collective> BaseCommunicator::receive(std::byte* data, std::size_t bytes, std::size_t peer) {
  STRETTO_TRY(check_peer(peer));
  return Collective(this, start_receive(data, bytes, peer));
}

Status BaseCommunicator::located(Status status) const {
  if (members_.empty() || status.is_ok()) {
    return status;
  }
  return {status.code(),
          std::string(status.message()) + " (in a sub-group, from its rank 0 on " +
              rendezvous::name_ranks(members_) + " of the whole group)"};
}

Status BaseCommunicator::mismatch(std::uint64_t number,
                                  const Call& own,
                                  std::size_t peer,
                                  const Call& theirs) const {
  return {StatusCode::kInvalidArgument,
          "collective " + std::to_string(number) + " of " + name_of(rank()) + " is " +
              to_string(own) + ", that of " + name_of(peer) + " is " + to_string(theirs) +
              "; all ranks start the same collectives in the same order"};
}

Status BaseCommunicator::not_ended(std::uint64_t number) const {
  return {StatusCode::kDeadlineExceeded,
          "collective " + std::to_string(number) + " of " + name_of(rank()) +
              " did not end before its deadline; has every rank started it?"};
}

}  // namespace stretto::collective

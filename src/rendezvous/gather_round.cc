// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/gather_round.hpp"

#include <utility>

namespace stretto::rendezvous {
namespace {

std::string describe_call(std::size_t rank, std::uint64_t sequence, std::string_view what) {
  return "rank " + std::to_string(rank) + " is at its all_gather number " +
         std::to_string(sequence) + " for '" + std::string(what) + "'";
}

Status too_large(std::string_view what, std::size_t bytes) {
  return {StatusCode::kInvalidArgument,
          "all_gather for '" + std::string(what) + "' has " + std::to_string(bytes) +
              " bytes; the control connections carry at most " +
              std::to_string(kMostGatheredBytes) + " of all ranks together"};
}

}  // namespace

Status check_gather_call(std::string_view what, std::size_t bytes) {
  if (what.size() > kMostWhatBytes) {
    return {StatusCode::kInvalidArgument,
            "the purpose of an all_gather has " + std::to_string(what.size()) +
                " characters; at most " + std::to_string(kMostWhatBytes) + " are allowed"};
  }
  if (bytes > kMostGatheredBytes) {
    return too_large(what, bytes);
  }
  return {};
}

Status GatherRound::add(std::size_t rank,
                        std::uint64_t sequence,
                        std::string_view what,
                        spi::Bytes blob) {
  if (rank >= blobs_.size()) {
    return {StatusCode::kInvalidArgument, "there is no rank " + std::to_string(rank)};
  }
  if (!open()) {
    first_rank_ = rank;
    sequence_ = sequence;
    what_ = what;
  }
  if (blobs_[rank].has_value() || sequence != sequence_ || what != what_) {
    return {StatusCode::kInvalidArgument,
            describe_call(first_rank_, sequence_, what_) + ", but " +
                describe_call(rank, sequence, what) +
                "; all ranks make the same calls in the same order"};
  }
  if (blob.size() > kMostGatheredBytes - bytes_) {
    return too_large(what, bytes_ + blob.size());
  }
  bytes_ += blob.size();
  blobs_[rank] = std::move(blob);
  ++arrived_;
  return {};
}

std::vector<std::size_t> GatherRound::missing() const {
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 0; rank < blobs_.size(); ++rank) {
    if (!has(rank)) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::vector<spi::Bytes> GatherRound::take() {
  std::vector<spi::Bytes> all;
  all.reserve(blobs_.size());
  for (auto& blob : blobs_) {
    all.push_back(std::move(blob).value_or(spi::Bytes{}));
    blob.reset();
  }
  arrived_ = 0;
  bytes_ = 0;
  return all;
}

}  // namespace stretto::rendezvous

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/control.hpp"
#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stretto::rendezvous {

/// Blobs of all ranks in one all_gather together.
inline constexpr std::size_t kMostGatheredBytes = std::size_t{64} << 20;
/// Characters of a purpose.
inline constexpr std::size_t kMostWhatBytes = 256;

/// Collects one blob per rank for one all_gather after the other, and checks that all ranks mean
/// the same one.  Pure bookkeeping.
///
/// Threading: thread-compatible.
class GatherRound {
 public:
  explicit GatherRound(std::size_t size) : blobs_(size) {}

  /// Takes one rank's blob.
  ///
  /// Errors: kInvalidArgument for another purpose or place in the order than the rank that came
  ///         first, or too many bytes.
  Status add(std::size_t rank, std::uint64_t sequence, std::string_view what, spi::Bytes blob);

  bool complete() const noexcept { return arrived_ == blobs_.size(); }
  bool has(std::size_t rank) const noexcept { return blobs_[rank].has_value(); }
  bool open() const noexcept { return arrived_ > 0; }
  std::uint64_t sequence() const noexcept { return sequence_; }
  const std::string& what() const noexcept { return what_; }
  std::vector<std::size_t> missing() const;

  /// The blobs of a complete round; the next one begins.
  std::vector<spi::Bytes> take();

 private:
  std::vector<std::optional<spi::Bytes>> blobs_;
  std::size_t arrived_ = 0;
  std::size_t bytes_ = 0;
  std::size_t first_rank_ = 0;
  std::uint64_t sequence_ = 0;
  std::string what_;
};

/// What is checked before a blob leaves its rank.
Status check_gather_call(std::string_view what, std::size_t bytes);

}  // namespace stretto::rendezvous

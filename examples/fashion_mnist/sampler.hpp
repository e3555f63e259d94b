// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fashion_mnist {

/// How pictures are dealt to ranks.
enum class Sharding : std::uint8_t {
  kMixed,    ///< every rank gets any picture
  kByClass,  ///< every rank gets classes of its own: rank 0 of 2 has 0 to 4
};

/// Which pictures a rank trains on in a step; a function of seed, epoch, step and rank alone, so
/// that a run that was resumed sees the same ones.
///
/// Threading: thread-compatible.
class Sampler {
 public:
  Sampler(std::span<const std::uint8_t> labels,
          Sharding sharding,
          std::size_t rank,
          std::size_t world_size,
          std::size_t batch,
          std::uint64_t seed);

  /// The same on all ranks; an incomplete batch at the end is left out.
  std::size_t steps_per_epoch() const noexcept { return steps_per_epoch_; }
  /// Indices of this rank's pictures in a step counted over all epochs.
  std::span<const std::uint32_t> batch_of(std::uint64_t step);

 private:
  void shuffle_for(std::uint64_t epoch);

  std::vector<std::uint32_t> own_;    // what this rank draws from, in the order of the files
  std::vector<std::uint32_t> order_;  // shuffled for the current epoch
  std::size_t batch_;
  std::size_t stride_;  // pictures that all ranks take from order_ in a step
  std::size_t first_;   // of them, where this rank's begin
  std::size_t steps_per_epoch_;
  std::uint64_t seed_;
  std::uint64_t epoch_ = ~std::uint64_t{0};
};

}  // namespace fashion_mnist

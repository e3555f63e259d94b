// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stretto::cli {

/// Gradients whose mean is known exactly: whole numbers below 4096 that depend on seed, rank,
/// parameter, step and element, so that sums in float32 are exact for up to 4096 ranks.
///
/// Each parameter has memory of its own, as a user's gradient has, and a little more than it needs:
/// each step begins at another place in it.  A step's payload costs nothing to make and differs
/// from those of the steps before.
///
/// Threading: immutable.
class Payload {
 public:
  /// No element is larger.
  static constexpr float kLargest = 4095;
  /// A step's payload comes back after so many steps.
  static constexpr std::uint64_t kPeriod = 251;

  Payload(std::uint64_t seed,
          std::size_t rank,
          std::size_t ranks,
          const std::vector<std::size_t>& elements);

  /// This rank's gradient; valid as long as the payload.
  const std::byte* gradient(std::size_t parameter, std::uint64_t step) const;

  /// How many elements of a result are not, to the bit, the mean of all ranks' gradients.
  /// With a bound: how many are further from it than that, or no numbers.
  std::size_t mismatches(std::size_t parameter,
                         std::uint64_t step,
                         const std::byte* result,
                         float bound = 0) const;

 private:
  std::uint64_t seed_;
  std::size_t ranks_;
  std::vector<std::size_t> elements_;
  std::vector<std::vector<float>> memory_;
};

}  // namespace stretto::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/engine.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace stretto::schedule {

/// Where each parameter lies.  Fixed at commit: re-planning moves boundaries and priorities, never
/// memory.
struct Layout {
  /// A run of parameters of one dtype and one rule.
  struct Bucket {
    DType dtype = DType::kFloat32;
    Rule rule = Rule::kMean;
    std::size_t first_byte = 0;     ///< in the arena
    std::size_t element_count = 0;  ///< with the padding between parameters
  };
  /// One parameter's place.
  struct Place {
    BucketId bucket{0};
    std::size_t first_element = 0;  ///< in its bucket
    std::size_t element_count = 0;
  };
  std::vector<Bucket> buckets;
  std::vector<Place> places;       ///< by parameter id
  std::vector<ParameterId> order;  ///< parameters as they lie in memory
  std::size_t arena_bytes = 0;
};

/// Parameters start at multiples of this, so that no kernel meets a misaligned one.
inline constexpr std::size_t kAlignment = 64;

/// Lays parameters out: buckets by rule and dtype, in each the order of registration.  `alone`, if
/// given, is the number of a parameter that shares its bucket with none and lies at the end.
///
/// Cost: O(parameters).
Layout make_layout(std::span<const ParameterSpec> parameters,
                   std::optional<std::size_t> alone = std::nullopt);

}  // namespace stretto::schedule

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "schedule/layout.hpp"

#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stretto::schedule {

/// How the arena is cut into chunks, and which goes first.  The same on all ranks.
struct Plan {
  struct Chunk {
    BucketId bucket{0};
    std::size_t first_element = 0;  ///< in its bucket
    std::size_t element_count = 0;
    std::uint32_t priority = 0;        ///< smaller goes first; the position at which it is expected
    std::optional<std::size_t> group;  ///< that it is; of coded buckets
  };
  std::vector<Chunk>
      chunks;  ///< by chunk id, in memory order; together they cover every bucket once

  /// Of everything that two ranks must agree on.
  std::uint64_t hash = 0;
};

/// Cuts every bucket into chunks of about `chunk_bytes`; a coded one into its groups, unless
/// `coded` is false: then the plan moves every bucket's bytes as they are.
///
/// `ready_order[p]` is the position at which parameter p's gradient appeared, on rank 0, in an
/// earlier step; empty before the first.  A chunk ends where its bytes reach chunk_bytes, or at a
/// parameter that appears much later than its neighbour in memory, so that early gradients do not
/// wait for late ones.  Large parameters are cut; small ones share a chunk.  With chunk_bytes 0
/// every parameter is a chunk of its own, whatever its size: what buckets are compared with.
///
/// Cost: O(parameters + chunks).
Plan make_plan(const Layout& layout,
               std::span<const std::uint32_t> ready_order,
               std::size_t chunk_bytes,
               bool coded = true);

/// The share of parameters that appeared in another place than the plan expects, from 0 to 1: the
/// sum of displacements over its largest possible value.
double order_drift(std::span<const std::uint32_t> expected, std::span<const std::uint32_t> seen);

}  // namespace stretto::schedule

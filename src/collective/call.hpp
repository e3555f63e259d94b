// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/collective.hpp"
#include "stretto/options.hpp"
#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace stretto::collective {

enum class Kind : std::uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kBarrier };

/// What a rank calls, as far as all ranks must call the same.
struct Call {
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kFloat32;
  Reduction reduction = Reduction::kSum;
  std::uint32_t root = 0;
  std::uint64_t count = 0;  ///< elements of what is added, else bytes

  bool operator==(const Call&) const = default;

  bool sums() const noexcept { return kind == Kind::kAllReduce || kind == Kind::kReduceScatter; }
  /// Bytes of what `count` counts.
  std::size_t width() const noexcept { return sums() ? size_of(dtype) : 1; }
};

/// "all_reduce of 100 elements of float32 (sum)", "broadcast of 12 bytes from rank 1".
std::string to_string(const Call& call);

/// What options mean for collectives.  They have no parameters, so a chunk size of 0, which is a
/// chunk per parameter to an engine, is the default here.
EngineOptions for_collectives(EngineOptions options);

/// A call with this rank's memory.
struct Job {
  Call call;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
};

}  // namespace stretto::collective

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "checkpoint/safetensors.hpp"

#include "stretto/status.hpp"

#include <cstdint>
#include <string>

namespace stretto::checkpoint {

/// What a checkpoint is of; kept as strings in the file's metadata, under "stretto.".
struct Manifest {
  std::uint64_t step = 0;  ///< steps that are contained
  std::uint64_t world_size = 1;
  std::uint64_t plan_hash = 0;  ///< of names, shapes and types of all that was exchanged

  bool operator==(const Manifest&) const = default;
};

/// Adds the manifest to what the caller wants to keep; the caller's keys must not start with
/// "stretto.".
void put_manifest(const Manifest& manifest, Metadata& metadata);

/// Errors: kInvalidArgument if it is missing, not readable or of a newer version than this one.
Result<Manifest> manifest_of(const Metadata& metadata, const std::string& path);

}  // namespace stretto::checkpoint

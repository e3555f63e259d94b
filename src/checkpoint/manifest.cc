// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/manifest.hpp"

#include <charconv>

namespace stretto::checkpoint {
namespace {

constexpr std::uint64_t kVersion = 1;

Result<std::uint64_t> number_of(const Metadata& metadata,
                                const std::string& key,
                                const std::string& path) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) {
    return fail(StatusCode::kInvalidArgument,
                "'" + path + "' is no Stretto checkpoint: its metadata lacks '" + key + "'");
  }
  const std::string& text = found->second;
  std::uint64_t value = 0;
  const auto* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc{} || stopped != end) {
    return fail(StatusCode::kInvalidArgument,
                "'" + path + "' has the metadata '" + key + "', but not as a whole number");
  }
  return value;
}

}  // namespace

void put_manifest(const Manifest& manifest, Metadata& metadata) {
  metadata["stretto.version"] = std::to_string(kVersion);
  metadata["stretto.step"] = std::to_string(manifest.step);
  metadata["stretto.world_size"] = std::to_string(manifest.world_size);
  metadata["stretto.plan_hash"] = std::to_string(manifest.plan_hash);
}

Result<Manifest> manifest_of(const Metadata& metadata, const std::string& path) {
  STRETTO_TRY_ASSIGN(const auto version, number_of(metadata, "stretto.version", path));
  if (version != kVersion) {
    return fail(StatusCode::kInvalidArgument,
                "'" + path + "' is a checkpoint of version " + std::to_string(version) +
                    "; this build reads version " + std::to_string(kVersion));
  }
  Manifest manifest;
  STRETTO_TRY_ASSIGN(manifest.step, number_of(metadata, "stretto.step", path));
  STRETTO_TRY_ASSIGN(manifest.world_size, number_of(metadata, "stretto.world_size", path));
  STRETTO_TRY_ASSIGN(manifest.plan_hash, number_of(metadata, "stretto.plan_hash", path));
  return manifest;
}

}  // namespace stretto::checkpoint

// SPDX-License-Identifier: Apache-2.0
// Anything at all where the profile of a model should be: what is let in can be replayed.
#include "cli/profile.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto profile = stretto::cli::parse_profile(text, "a profile");
  if (!profile) {
    return 0;
  }
  const auto layers = stretto::cli::scale_profile(*profile, {.time = 1, .bytes = 1});
  if (layers.empty() || layers.size() != profile->size()) {
    std::abort();
  }
  for (const auto& layer : layers) {
    if (layer.elements == 0 || layer.forward.count() < 0 || layer.backward.count() < 0) {
      std::abort();
    }
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
//
// A profile says, layer by layer, how long backward took and how many bytes of gradient it left.
// The file: a line of words, the number of batches, the number of layers, then one line per layer,
// output layer first: "microseconds since the previous layer,bytes".
#pragma once

#include "stretto/status.hpp"

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace stretto::cli {

/// One layer as it was measured.
struct ProfileLayer {
  double backward_us = 0;
  double bytes = 0;  ///< of its gradient
};

/// One layer as it is replayed.
struct ReplayLayer {
  std::chrono::nanoseconds forward{0};
  std::chrono::nanoseconds backward{0};
  std::size_t elements = 1;  ///< float32
};

/// How a profile is stretched.
struct ReplayScale {
  double time = 4;
  double bytes = 0.3;
  double forward_ratio = 0.5;  ///< forward time / backward time

  Status validate() const;
};

/// Reads the text of a profile; `name` appears in errors.
///
/// Errors: kInvalidArgument names the line.
Result<std::vector<ProfileLayer>> parse_profile(std::string_view text, const std::string& name);

/// Reads a file.
///
/// Errors: kUnavailable if it cannot be read; those of parse_profile.
Result<std::vector<ProfileLayer>> read_profile(const std::string& path);

/// The layers as they are replayed, output layer first: max(1, bytes * scale / 4) elements each.
std::vector<ReplayLayer> scale_profile(const std::vector<ProfileLayer>& profile,
                                       const ReplayScale& scale);

}  // namespace stretto::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/recorder.hpp"

#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <functional>
#include <span>
#include <string>

namespace stretto::trace {

/// Writes spans as a Chrome trace (chrome://tracing, Perfetto): one process per rank, one thread
/// per lane.  `parameter_name` gives names to ids.
///
/// Errors: kUnavailable names the file and why; an incomplete file is removed.
Status write_chrome_trace(const std::string& path,
                          Rank rank,
                          std::span<const Span> spans,
                          const std::function<std::string(std::uint32_t)>& parameter_name);

}  // namespace stretto::trace

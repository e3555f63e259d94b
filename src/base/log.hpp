// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/status.hpp"

#include <string_view>

namespace stretto {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

/// Reads "debug", "info", "warning", "error" or "off".
///
/// Errors: kInvalidArgument names them.
Result<LogLevel> parse_log_level(std::string_view text);

/// Sets what is printed; STRETTO_LOG decides at first use.
void set_log_level(LogLevel level);
/// Puts "rank 2" in front of every line of this process.
void set_log_rank(std::size_t rank);

/// One line on stderr.  Whoever creates an error logs it; callers pass it on.  Never on a hot path.
///
/// Threading: thread-safe.
void log(LogLevel level, std::string_view text);

}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
//
// A configuration file is TOML, of which settings need little: `key = "text"` or `key = 5`, a line
// each, and comments.
#pragma once

#include "stretto/status.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace stretto::cli {

/// One line of a configuration file that says something.
struct ConfigEntry {
  enum class Type { kText, kNumber };
  std::string key;
  std::string value;  ///< without quotes
  Type type = Type::kText;
  std::size_t line = 0;  ///< counted from 1
};

/// Reads the text of a configuration file; `name` appears in errors.
///
/// Errors: kInvalidArgument names the line.
Result<std::vector<ConfigEntry>> parse_config(std::string_view text, const std::string& name);

/// Reads a file.
///
/// Errors: kInvalidArgument if it cannot be read; those of parse_config.
Result<std::vector<ConfigEntry>> read_config(const std::string& path);

}  // namespace stretto::cli

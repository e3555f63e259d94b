// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/status.hpp"

#include <map>
#include <string>
#include <vector>

namespace stretto::cli {

/// A variable that Stretto reads, with what is in force and where that comes from.
struct SettingState {
  std::string name;
  std::string value;
  std::string origin;  ///< "default", "environment", "FILE:LINE" or "command line"
  std::string help;
};

/// Where variables come from that this process has set itself, by name.
using SettingOrigins = std::map<std::string, std::string>;

/// Sets what a configuration file says and the environment does not: later readers, here and in the
/// programs that `run` starts, find it as if it had been there.
///
/// Errors: kInvalidArgument names the file, the line and the key.
Status apply_config(const std::string& path, SettingOrigins& origins);

/// All variables that Stretto reads.
std::vector<SettingState> read_settings(const SettingOrigins& origins);

/// STRETTO_* variables that are set and that nothing reads: misspelt, most likely.
std::vector<std::string> unknown_settings();

}  // namespace stretto::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace stretto::cli {

/// A variable that Stretto reads, with what is in force and where that comes from.
struct SettingState {
  std::string name;
  std::string value;
  std::string origin;  ///< "default" or "environment"
  std::string help;
};

/// All variables that Stretto reads.
std::vector<SettingState> read_settings();

/// STRETTO_* variables that are set and that nothing reads: misspelt, most likely.
std::vector<std::string> unknown_settings();

}  // namespace stretto::cli

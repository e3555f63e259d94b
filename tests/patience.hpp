// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

namespace stretto::testing {

/// What is said when a time-out runs out depends on how far everybody has come by then, and on a
/// busy machine that may be nowhere.  Calls `attempt` with a longer time-out as long as it returns
/// what was wrong, and returns what was wrong with the last: nothing, if one was right.
template <typename Attempt>
std::string with_patience(Attempt attempt) {
  std::string wrong;
  for (const int milliseconds : {200, 2000, 20'000}) {
    wrong = attempt(std::chrono::milliseconds(milliseconds));
    if (wrong.empty()) {
      break;
    }
  }
  return wrong;
}

}  // namespace stretto::testing

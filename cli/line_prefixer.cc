// SPDX-License-Identifier: Apache-2.0
#include "line_prefixer.hpp"

#include <utility>

namespace stretto::cli {

std::string LinePrefixer::take(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    if (std::exchange(returned_, false) && c != '\n') {
      if (bars_ == Bars::kKeep) {
        out += line_.empty() ? "\r" : prefix_ + line_ + "\r";
      }
      line_.clear();
    }
    if (c == '\r') {
      returned_ = true;
    } else if (c == '\n') {
      out += prefix_ + line_ + "\n";
      line_.clear();
    } else {
      line_ += c;
      if (line_.size() == kLongestLine) {
        out += prefix_ + line_ + "\n";
        line_.clear();
      }
    }
  }
  // The bar shows at once: whether a newline follows its return does not matter to the eye.
  if (returned_ && bars_ == Bars::kKeep && !line_.empty()) {
    out += prefix_ + line_ + "\r";
    line_.clear();
    returned_ = false;
  }
  return out;
}

std::string LinePrefixer::finish() {
  if (line_.empty()) {
    return {};
  }
  return prefix_ + std::exchange(line_, {}) + "\n";
}

}  // namespace stretto::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace stretto::cli {

/// Turns what one rank writes into whole lines with "[rank] " in front.
///
/// A carriage return ends a piece too, so that rank 0's progress bar moves; the pieces of other
/// ranks that end so are left out, or the bars would overwrite each other.
///
/// Threading: thread-compatible.
class LinePrefixer {
 public:
  enum class Bars { kKeep, kDrop };
  LinePrefixer(std::string prefix, Bars bars) : prefix_(std::move(prefix)), bars_(bars) {}

  /// Takes what was read and returns what to print now.
  std::string take(std::string_view bytes);
  /// The rest, once nothing more comes.
  std::string finish();

 private:
  /// Longer lines are printed in pieces: a rank that never ends its line costs no memory.
  static constexpr std::size_t kLongestLine = std::size_t{64} << 10;

  std::string prefix_;
  Bars bars_;
  std::string line_;
  bool returned_ = false;  // a carriage return came last: a newline behind it belongs to it
};

}  // namespace stretto::cli

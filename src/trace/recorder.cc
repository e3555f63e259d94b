// SPDX-License-Identifier: Apache-2.0
#include "trace/recorder.hpp"

#include <algorithm>

namespace stretto::trace {

const char* to_string(What what) noexcept {
  switch (what) {
    case What::kReady:
      return "ready";
    case What::kTaken:
      return "taken";
    case What::kChunk:
      return "chunk";
    case What::kHome:
      return "home";
    case What::kWait:
      return "wait";
    case What::kStep:
      return "step";
    case What::kReplan:
      return "replan";
  }
  return "?";
}

std::vector<Span> Recorder::spans() const {
  std::vector<Span> list;
  const std::uint64_t first = lost();
  list.reserve(static_cast<std::size_t>(next_ - first));
  for (std::uint64_t i = first; i < next_; ++i) {
    list.push_back(spans_[i % spans_.size()]);
  }
  return list;
}

}  // namespace stretto::trace

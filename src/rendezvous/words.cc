// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/words.hpp"

#include <algorithm>

namespace stretto::rendezvous {

std::string name_ranks(const std::vector<std::size_t>& ranks) {
  constexpr std::size_t kMostNamed = 8;
  if (ranks.size() == 1) {
    return "rank " + std::to_string(ranks.front());
  }
  const std::size_t named = std::min(ranks.size(), kMostNamed);
  std::string text = "ranks ";
  for (std::size_t i = 0; i < named; ++i) {
    if (i > 0) {
      text += i + 1 == ranks.size() ? " and " : ", ";
    }
    text += std::to_string(ranks[i]);
  }
  if (named < ranks.size()) {
    text += " and " + std::to_string(ranks.size() - named) + " more";
  }
  return text;
}

std::string name_duration(std::chrono::nanoseconds duration) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  if (ms >= 1000 && ms % 1000 == 0) {
    return std::to_string(ms / 1000) + " s";
  }
  return std::to_string(ms) + " ms";
}

}  // namespace stretto::rendezvous

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fashion_mnist {

/// SplitMix64: the same numbers on every host, unlike std's distributions.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15U;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
  }
  /// Below `bound`; the bias of the remainder is under 1e-12 here.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }

 private:
  std::uint64_t state_;
};

}  // namespace fashion_mnist

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/coding_arithmetic.hpp"

#include <cstddef>
#include <cstdint>

// What the sparse wires compute for one element, in the manner of coding_arithmetic.hpp and C++17
// as that is.  x is what an element would have to say: its value, or what a momentum makes of it,
// and what earlier steps have left.  An element is selected if the bits of |x|, as an integer, are
// at least a threshold; a threshold is never 0, so a zero is never selected.

namespace stretto::kernels {

/// A momentum after a gradient, and by how much it moves the parameter (Lin et al. 2018, section
/// 3.2): u = m u + g moves by u; Nesterov's u = m (u + g) moves by u + g.
struct Velocity {
  float next = 0;
  float moved = 0;
};
inline Velocity velocity(float gradient, float before, float momentum, bool nesterov) noexcept {
  const float inner = before + (nesterov ? gradient : 0.0F);
  const float kept = momentum * inner;
  const float moved = kept + gradient;
  return {nesterov ? kept : moved, moved};
}

struct SelectElement {
  float x = 0;
  float scaled = 0;  ///< the value alone
  float next = 0;    ///< the momentum
  bool refused = false;
};

/// An element without momentum.
inline SelectElement select_input(float value, float scale, float residual, float factor) noexcept {
  const float x = coding_input(value, scale, residual, factor);
  if (beyond_coding_limit(x)) {
    return {coding_input_refused(residual, factor), 0.0F, 0.0F, true};
  }
  return {x, value * scale, 0.0F, false};
}

/// How a momentum works, for a whole segment.
struct MomentumRule {
  float momentum = 0;
  bool nesterov = false;
};

/// An element with momentum.  One that is refused counts as a gradient of 0; if its momentum alone
/// is too large, that ends.
inline SelectElement select_input(float value,
                                  float scale,
                                  float residual,
                                  float factor,
                                  float before,
                                  const MomentumRule& rule) noexcept {
  const float carried = residual * factor;
  const float scaled = value * scale;
  const Velocity now = velocity(scaled, before, rule.momentum, rule.nesterov);
  const float x = now.moved + carried;
  if (!beyond_coding_limit(x) && !beyond_coding_limit(now.next)) {
    return {x, scaled, now.next, false};
  }
  const Velocity coasting = velocity(0.0F, before, rule.momentum, rule.nesterov);
  const float coasted = coasting.moved + carried;
  if (!beyond_coding_limit(coasted) && !beyond_coding_limit(coasting.next)) {
    return {coasted, 0.0F, coasting.next, true};
  }
  return {coding_input_refused(residual, factor), 0.0F, 0.0F, true};
}

/// |x| as an integer: larger where |x| is.
inline std::uint32_t magnitude_bits(float x) noexcept {
  return bits_of(x) & 0x7fffffffU;
}

/// More than any |x| that was not refused: selects nothing.
inline constexpr std::uint32_t kSelectNothing = 0x7fffffffU;
/// Selects all but zeros.
inline constexpr std::uint32_t kSelectNonZero = 1;

}  // namespace stretto::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace stretto::kernels {

/// Makes this thread round to nearest even and keep denormals for a scope: an application may have
/// told its threads (and so those that they start) to flush denormals, which would change bits on
/// this rank alone.
///
/// Threading: confined(one thread).      Cost: a few cycles where nothing is to be changed.
class FloatEnvironment {
 public:
#if defined(__SSE2__)
  FloatEnvironment() noexcept : saved_(_mm_getcsr()) {
    if ((saved_ & ~kFlags) != kDefault) {
      _mm_setcsr(kDefault);
    }
  }
  ~FloatEnvironment() {
    if ((saved_ & ~kFlags) != kDefault) {
      _mm_setcsr(saved_);
    }
  }
#elif defined(__aarch64__)
  FloatEnvironment() noexcept {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    if (saved_ != 0) {
      asm volatile("msr fpcr, %0" : : "r"(0UL));
    }
  }
  ~FloatEnvironment() {
    if (saved_ != 0) {
      asm volatile("msr fpcr, %0" : : "r"(saved_));
    }
  }
#else
  FloatEnvironment() noexcept = default;
  ~FloatEnvironment() = default;
#endif
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__SSE2__)
  static constexpr unsigned kFlags = 0x3fU;      // exceptions seen: sticky, of no effect
  static constexpr unsigned kDefault = 0x1f80U;  // to nearest, denormals kept, nothing traps
  unsigned saved_;
#elif defined(__aarch64__)
  unsigned long saved_ = 0;
#endif
};

}  // namespace stretto::kernels

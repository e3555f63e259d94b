// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STRETTO_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define STRETTO_TEST_SANITIZED 1
#endif
#endif

namespace stretto::spi::conformance {

/// How often suites repeat what goes by chance.  Less under sanitizers, which are ten times slower;
/// every kind of thing remains.
#ifdef STRETTO_TEST_SANITIZED
inline constexpr std::size_t kRepetition = 1;
#else
inline constexpr std::size_t kRepetition = 4;
#endif

}  // namespace stretto::spi::conformance

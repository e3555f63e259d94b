// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace stretto {

/// Prints what was violated and where, and aborts.
[[noreturn]] void check_failed(std::string_view condition, std::string_view file, int line);

}  // namespace stretto

/// Aborts on a programming error.  Never for what a peer, a file or a user sends.
#define STRETTO_CHECK(condition)                               \
  do {                                                         \
    if (!(condition)) [[unlikely]] {                           \
      ::stretto::check_failed(#condition, __FILE__, __LINE__); \
    }                                                          \
  } while (false)

#ifdef NDEBUG
#define STRETTO_DCHECK(condition) static_cast<void>(0)
#else
#define STRETTO_DCHECK(condition) STRETTO_CHECK(condition)
#endif

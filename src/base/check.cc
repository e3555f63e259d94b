// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"

#include <cstdio>
#include <cstdlib>

namespace stretto {

void check_failed(std::string_view condition, std::string_view file, int line) {
  std::fprintf(stderr,
               "stretto: bug: %.*s does not hold at %.*s:%d; please report it with this line\n",
               static_cast<int>(condition.size()),
               condition.data(),
               static_cast<int>(file.size()),
               file.data(),
               line);
  std::abort();
}

}  // namespace stretto

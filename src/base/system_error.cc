// SPDX-License-Identifier: Apache-2.0
#include "base/system_error.hpp"

#include <cerrno>
#include <cstring>

namespace stretto {

Status system_error(const std::string& what) {
  const int error = errno;
  const char* advice = "";
  if (error == EMFILE) {
    advice = "; raise the limit of open files (ulimit -n)";
  } else if (error == ENFILE) {
    advice = "; all processes of this host together have too many files open (fs.file-max)";
  }
  return {StatusCode::kUnavailable, what + ": " + std::strerror(error) + advice};
}

}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/status.hpp"

#include <string>

namespace stretto {

/// What the system refused just now, from errno: kUnavailable, with `what`, the system's reason,
/// and what to do where that is known.
Status system_error(const std::string& what);

}  // namespace stretto

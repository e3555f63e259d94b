// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"

#include "stretto/status.hpp"

#include <span>

namespace stretto::exchange {

/// One descriptor that is readable when any of these is; one that is negative is left out.
///
/// Errors: kUnavailable where the system has no more descriptors.
Result<FileDescriptor> watch_all(std::span<const int> descriptors);

}  // namespace stretto::exchange

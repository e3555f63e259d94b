// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"

#include "stretto/status.hpp"

namespace stretto::exchange {

/// One descriptor that is readable when either of two is; one that is negative is left out.
///
/// Errors: kUnavailable where the system has no more descriptors.
Result<FileDescriptor> watch_both(int first, int second);

}  // namespace stretto::exchange

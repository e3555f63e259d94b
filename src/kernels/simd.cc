// SPDX-License-Identifier: Apache-2.0
#include "kernels/table.hpp"

namespace stretto::kernels {

std::vector<const Table*> simd_tables() {
  return {};
}

}  // namespace stretto::kernels

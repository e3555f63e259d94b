// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace stretto::rendezvous {

/// "rank 2", "ranks 2 and 3", "ranks 1, 2, 3 and 9 more".
std::string name_ranks(const std::vector<std::size_t>& ranks);

/// "60 s" or "250 ms".
std::string name_duration(std::chrono::nanoseconds duration);

}  // namespace stretto::rendezvous

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace stretto {

/// 64-bit hash (XXH3) of bytes; the same on every host.
std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed = 0) noexcept;
std::uint64_t hash_text(std::string_view text, std::uint64_t seed = 0) noexcept;

}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/codec.hpp"
#include "stretto/status.hpp"

#include <memory>
#include <span>
#include <string_view>

namespace stretto::codec {

/// Makes a codec by the name that users give it: kind[:argument][:option=value...].  Every kind
/// knows the option feedback=on|off.
///
/// Errors: kInvalidArgument says what of the name is wrong and what would be right.
Result<std::shared_ptr<const spi::Codec>> make_codec(std::string_view name);

/// Every kind, as a user would write it with its default argument, for help texts and tests that go
/// through all of them.
std::span<const std::string_view> codec_names() noexcept;

}  // namespace stretto::codec

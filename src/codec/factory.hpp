// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/codec.hpp"
#include "stretto/status.hpp"

#include <memory>

namespace stretto::codec {

/// The codec that leaves everything as it is: the reference for the seam.
Result<std::unique_ptr<spi::Codec>> make_plain_codec(const spi::CodecSegment& segment);

}  // namespace stretto::codec

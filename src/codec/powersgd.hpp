// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/name.hpp"

#include "stretto/spi/codec.hpp"

#include <memory>

namespace stretto::codec {

/// powersgd:RANK, of rank 1 to 32, 4 if none is given.
///
/// Errors: kInvalidArgument for another rank or an option that there is not.
/// Source: PowerSGD (Vogels et al. 2019).  Differs: lengths of what is kept are powers of two, and
/// a direction along which nothing lies is drawn again.
Result<std::shared_ptr<const spi::Codec>> make_powersgd_codec(const CodecName& name);

}  // namespace stretto::codec

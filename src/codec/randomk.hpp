// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/name.hpp"

#include "stretto/spi/codec.hpp"

#include <memory>

namespace stretto::codec {

/// randomk:SHARE (default 10%): some elements by chance, the same on all ranks in a step, so that
/// no index travels and sums are as short as wires.  One element of each of k equal parts of the
/// segment.  What is not chosen waits in the residual (feedback=on, the default); with feedback=off
/// what is chosen counts for its whole part, and the result is unbiased.
///
/// Errors: kInvalidArgument names what is wrong and what would be right.
/// Source: Stich et al. 2018.  Differs: stratified.
Result<std::shared_ptr<const spi::Codec>> make_randomk_codec(const CodecName& name);

}  // namespace stretto::codec

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/name.hpp"

#include "stretto/spi/codec.hpp"

#include <memory>

namespace stretto::codec {

/// topk:SHARE (default 1%): the elements of largest magnitude, exactly, bit by bit; the rest waits
/// in the residual (feedback=on, the default).
///
/// Options, from Deep Gradient Compression (Lin et al. 2018), of the senders alone:
///   momentum=M    momentum correction with factor masking: the codec has the momentum, and an
///                 optimizer with one of its own must not follow; with nesterov=on Nesterov's.
///                 Refused without feedback.
///   clip=C        scales the segment's gradient down to the norm C / sqrt(ranks), before all else;
///                 one more pass that reads.
/// and of the owners as well:
///   warmup=STEPS  starts with a share of 25 %, then 6.25 %, 1.5625 % and 0.4 %, a quarter of the
///                 steps each, but never less than SHARE.
///
/// Errors: kInvalidArgument names what is wrong and what would be right.
Result<std::shared_ptr<const spi::Codec>> make_topk_codec(const CodecName& name);

}  // namespace stretto::codec

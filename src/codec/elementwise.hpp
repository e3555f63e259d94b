// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/name.hpp"

#include "stretto/spi/codec.hpp"

#include <memory>

namespace stretto::codec {

/// fp16, bf16, int8, int4, sign: codecs whose wire says how large every element is, more or less.
///
/// Options: feedback=on|off, and for int8 and int4 rounding=nearest|stochastic; stochastic is
///          unbiased, and without feedback if nobody asks for it.
/// Sources: fp16, bf16: rounding, with a power of two per block for fp16.  int8, int4: QSGD
///          (Alistarh et al. 2017) with the largest magnitude of a block.  sign: 1-bit SGD's two
///          means (Seide et al. 2014) on both sides of the middle of a block; its feedback:
///          EF-SignSGD (Karimireddy et al. 2019).
Result<std::shared_ptr<const spi::Codec>> make_elementwise_codec(const CodecName& name);

}  // namespace stretto::codec

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/name.hpp"

#include "stretto/spi/codec.hpp"

#include <memory>

namespace stretto::codec {

/// signmaj: each rank that has samples votes with the sign of its values, and the majority's sign
/// is the result.  Without error feedback.
///
/// A vote is worth the mean magnitude of the voter's segment, which travels with it, and the result
/// the mean of these: so that hyper-parameters of SGD can stay.  With the option rate=X the result
/// is X or -X, and one bit for each element is all that travels.
///
/// Source: SignSGD with majority vote (Bernstein et al. 2019).  Differs: a coin decides what the
///         sign of zero is, and a tie; the mean magnitude.
Result<std::shared_ptr<const spi::Codec>> make_majority_codec(const CodecName& name);

}  // namespace stretto::codec

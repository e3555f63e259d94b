// SPDX-License-Identifier: Apache-2.0
// Anything at all where the factors of a matrix should be, in either of the two rounds.
#include "codec_fuzz.hpp"

using namespace stretto::codec;  // NOLINT(google-build-using-namespace): one small file

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Codecs codecs = factors_fuzz_codecs();
  return feed_factors(codecs, data, size);
}

// SPDX-License-Identifier: Apache-2.0
// Anything at all where the wire of a codec should be that sends few elements.
#include "codec_fuzz.hpp"

using namespace stretto::codec;  // NOLINT(google-build-using-namespace): one small file

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Codecs codecs = sparse_fuzz_codecs();
  return feed_codecs(codecs, data, size);
}

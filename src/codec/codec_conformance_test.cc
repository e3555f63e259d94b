// SPDX-License-Identifier: Apache-2.0
#include "stretto/spi/conformance/codec_conformance.hpp"

#include "codec/factory.hpp"

#include <cctype>

namespace stretto::spi {
namespace {

/// Every codec as its users have it by default, and what options make another codec of.
std::vector<CodecFactory> factories() {
  std::vector<std::string> names;
  for (const std::string_view name : codec::codec_names()) {
    names.emplace_back(name);
  }
  names.insert(names.end(), {"int8:rounding=stochastic", "int4:rounding=stochastic"});
  std::vector<CodecFactory> all;
  for (const std::string& name : names) {
    std::string word = name;
    for (char& letter : word) {
      letter = std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
    }
    all.push_back({word, [name] { return codec::make_codec(name); }});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Codecs,
                         CodecConformance,
                         testing::ValuesIn(factories()),
                         codec_factory_name);

}  // namespace
}  // namespace stretto::spi

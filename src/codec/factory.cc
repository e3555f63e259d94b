// SPDX-License-Identifier: Apache-2.0
#include "codec/factory.hpp"

#include "codec/elementwise.hpp"
#include "codec/majority.hpp"
#include "codec/name.hpp"
#include "codec/powersgd.hpp"
#include "codec/randomk.hpp"
#include "codec/topk.hpp"

#include <array>
#include <string>

namespace stretto::codec {
namespace {

using Made = Result<std::shared_ptr<const spi::Codec>>;

struct Kind {
  std::string_view name;
  std::string_view example;
  Made (*make)(const CodecName& name);
};

constexpr std::array kKinds{
    Kind{"fp16", "fp16", make_elementwise_codec},
    Kind{"bf16", "bf16", make_elementwise_codec},
    Kind{"int8", "int8", make_elementwise_codec},
    Kind{"int4", "int4", make_elementwise_codec},
    Kind{"sign", "sign", make_elementwise_codec},
    Kind{"signmaj", "signmaj", make_majority_codec},
    Kind{"topk", "topk:1%", make_topk_codec},
    Kind{"randomk", "randomk:10%", make_randomk_codec},
    Kind{"powersgd", "powersgd:4", make_powersgd_codec},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kKinds.size()> names{};
  for (std::size_t i = 0; i < names.size(); ++i) {
    names[i] = kKinds[i].example;
  }
  return names;
}();

}  // namespace

Made make_codec(std::string_view text) {
  STRETTO_TRY_ASSIGN(const CodecName name, CodecName::parse(text));
  std::string known;
  for (const Kind& kind : kKinds) {
    if (kind.name == name.kind()) {
      return kind.make(name);
    }
    known += (known.empty() ? "" : ", ") + std::string(kind.example);
  }
  return name.wrong("there is no such codec; known are none, " + known);
}

std::span<const std::string_view> codec_names() noexcept {
  return kNames;
}

}  // namespace stretto::codec

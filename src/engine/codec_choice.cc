// SPDX-License-Identifier: Apache-2.0
#include "engine/codec_choice.hpp"

#include "codec/factory.hpp"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <fnmatch.h>

namespace stretto::engine {
namespace {

constexpr std::string_view kNoCodec = "none";

struct Rule {
  std::string pattern;
  std::string codec;
};

/// "*.bias=none,head.*=int8".
Result<std::vector<Rule>> parse_rules(std::string_view text) {
  std::vector<Rule> rules;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    const std::string_view rule = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t equals = rule.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == rule.size()) {
      return fail(StatusCode::kInvalidArgument,
                  "'" + std::string(rule) +
                      "' is not a rule for codecs; write PATTERN=CODEC, as *.bias=none, several "
                      "with commas between them");
    }
    rules.push_back({std::string(rule.substr(0, equals)), std::string(rule.substr(equals + 1))});
  }
  return rules;
}

/// The codec's number, which it gets when it is first named.
Result<std::uint8_t> number_of(const std::string& name,
                               std::vector<std::string>& names,
                               schedule::Coding& coding) {
  if (name == kNoCodec || name.empty()) {
    return std::uint8_t{0};
  }
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) {
    return static_cast<std::uint8_t>(found - names.begin());
  }
  if (names.size() > UINT8_MAX) {
    return fail(StatusCode::kInvalidArgument, "the rules name more than 255 codecs");
  }
  STRETTO_TRY_ASSIGN(auto codec, codec::make_codec(name));
  coding.codecs.push_back(std::move(codec));
  names.push_back(name);
  return static_cast<std::uint8_t>(names.size() - 1);
}

bool is_large_matrix(const ParameterSpec& spec, const EngineOptions& options) {
  return spec.shape.size() >= 2 && element_count(spec.shape) >= options.codec_minimum;
}

bool suits(const spi::Codec* codec, const ParameterSpec& spec) {
  if (codec == nullptr) {
    return false;
  }
  return codec->suits({spec.dtype, element_count(spec.shape), schedule::row_elements(spec.shape)});
}

}  // namespace

Result<schedule::Coding> choose_codecs(std::span<const ParameterSpec> parameters,
                                       const EngineOptions& options) {
  schedule::Coding coding;
  std::vector<std::string> names{std::string(kNoCodec)};
  STRETTO_TRY_ASSIGN(const auto rules, parse_rules(options.codec_rules));
  STRETTO_TRY_ASSIGN(const std::uint8_t usual, number_of(options.codec, names, coding));
  std::vector<std::uint8_t> of_rule;
  for (const Rule& rule : rules) {
    STRETTO_TRY_ASSIGN(const std::uint8_t number, number_of(rule.codec, names, coding));
    of_rule.push_back(number);
  }
  for (const ParameterSpec& spec : parameters) {
    std::uint8_t number = is_large_matrix(spec, options) ? usual : std::uint8_t{0};
    for (std::size_t r = rules.size(); r-- > 0;) {
      if (::fnmatch(rules[r].pattern.c_str(), spec.name.c_str(), 0) == 0) {
        number = of_rule[r];
      }
    }
    const bool encoded =
        spec.rule == stretto::Rule::kMean && suits(coding.codecs[number].get(), spec);
    coding.of_parameter.push_back(encoded ? number : std::uint8_t{0});
  }
  return coding;
}

std::string codec_versions(const schedule::Coding& coding) {
  std::string text;
  for (const auto& codec : coding.codecs) {
    if (codec != nullptr) {
      text += (text.empty() ? "" : ", ") + codec->traits().name + " (wire " +
              std::to_string(codec->traits().version) + ")";
    }
  }
  return text.empty() ? std::string(kNoCodec) : text;
}

}  // namespace stretto::engine

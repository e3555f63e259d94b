// SPDX-License-Identifier: Apache-2.0
#include "codec/name.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace stretto::codec {
namespace {

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::string text_of(double value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), error == std::errc() ? end : text.data()};
}

}  // namespace

tl::unexpected<Status> CodecName::wrong(const std::string& what) const {
  return fail(StatusCode::kInvalidArgument, "codec '" + text_ + "': " + what);
}

Result<CodecName> CodecName::parse(std::string_view text) {
  CodecName name;
  name.text_ = text;
  std::size_t part = 0;
  for (std::size_t at = 0; at <= text.size(); ++part) {
    const std::size_t end = std::min(text.find(':', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    const std::size_t equals = word.find('=');
    at = end + 1;
    if (word.empty() || equals == 0 || equals + 1 == word.size()) {
      return name.wrong("an empty part; write name[:argument][:option=value], as topk:1%");
    }
    if (part == 0) {
      name.kind_ = word;
    } else if (equals != std::string_view::npos) {
      const std::string_view key = word.substr(0, equals);
      if (name.option(key)) {
        return name.wrong("the option " + std::string(key) + " comes twice");
      }
      name.options_.emplace_back(key, word.substr(equals + 1));
    } else if (!name.argument_.empty()) {
      return name.wrong("two arguments, " + name.argument_ + " and " + std::string(word));
    } else {
      name.argument_ = word;
    }
  }
  return name;
}

std::optional<std::string_view> CodecName::option(std::string_view key) const {
  for (const auto& [name, value] : options_) {
    if (name == key) {
      return value;
    }
  }
  return std::nullopt;
}

Status CodecName::allow_options(std::initializer_list<std::string_view> keys) const {
  for (const auto& [name, value] : options_) {
    if (std::find(keys.begin(), keys.end(), name) == keys.end()) {
      std::string known;
      for (const std::string_view key : keys) {
        known += (known.empty() ? "" : ", ") + std::string(key);
      }
      return wrong("there is no option " + name + " for it, only " +
                   (known.empty() ? "none" : known))
          .value();
    }
  }
  return {};
}

Result<bool> CodecName::switch_option(std::string_view key, bool otherwise) const {
  const auto value = option(key);
  if (!value) {
    return otherwise;
  }
  if (*value != "on" && *value != "off") {
    return wrong(std::string(key) + " is on or off, not " + std::string(*value));
  }
  return *value == "on";
}

Result<double> CodecName::number_option(std::string_view key,
                                        double otherwise,
                                        double least,
                                        double most) const {
  const auto value = option(key);
  if (!value) {
    return otherwise;
  }
  const auto read = number(*value);
  if (!read || !(*read >= least && *read <= most)) {
    return wrong(std::string(key) + " is a number from " + text_of(least) + " to " + text_of(most) +
                 ", not " + std::string(*value));
  }
  return *read;
}

Result<double> CodecName::share_argument(double otherwise) const {
  if (argument_.empty()) {
    return otherwise;
  }
  const auto share = parse_share(argument_);
  return share ? share : Result<double>(wrong(std::string(share.error().message())));
}

Result<double> parse_share(std::string_view text) {
  const bool percent = !text.empty() && text.back() == '%';
  const auto read = number(percent ? text.substr(0, text.size() - 1) : text);
  const double share = read ? (percent ? *read / 100 : *read) : 0;
  if (!(share > 0 && share <= 1)) {
    return fail(StatusCode::kInvalidArgument,
                "'" + std::string(text) +
                    "' is not a share; write a number above 0 and up to 100%, as 1% or 0.01");
  }
  return share;
}

}  // namespace stretto::codec

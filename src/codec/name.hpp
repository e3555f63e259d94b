// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/status.hpp"

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stretto::codec {

/// What a user calls a codec, taken apart: "topk:0.1%:warmup=500" is the kind topk with the
/// argument 0.1% and the option warmup.
///
/// Threading: thread-compatible.
class CodecName {
 public:
  /// Errors: kInvalidArgument for an empty part, an option that comes twice, or two arguments.
  static Result<CodecName> parse(std::string_view text);

  const std::string& text() const noexcept { return text_; }
  const std::string& kind() const noexcept { return kind_; }
  /// What stands after the kind without a name of its own; empty if nothing does.
  const std::string& argument() const noexcept { return argument_; }
  std::optional<std::string_view> option(std::string_view key) const;

  /// Errors: kInvalidArgument names the first option that is none of these.
  Status allow_options(std::initializer_list<std::string_view> keys) const;
  /// "on" or "off".
  Result<bool> switch_option(std::string_view key, bool otherwise) const;
  /// A number from `least` to `most`.
  Result<double> number_option(std::string_view key,
                               double otherwise,
                               double least,
                               double most) const;

  /// The argument as a share of the whole.
  Result<double> share_argument(double otherwise) const;

  /// An error that says what the text is and what would be right.
  tl::unexpected<Status> wrong(const std::string& what) const;

 private:
  std::string text_;
  std::string kind_;
  std::string argument_;
  std::vector<std::pair<std::string, std::string>> options_;
};

/// Reads the share of a whole: "1%", "0.001".
///
/// Errors: kInvalidArgument for what is no number, not above 0, or above 1.
Result<double> parse_share(std::string_view text);

}  // namespace stretto::codec

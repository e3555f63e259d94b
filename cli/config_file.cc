// SPDX-License-Identifier: Apache-2.0
#include "config_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

namespace stretto::cli {
namespace {

constexpr std::string_view kSpace = " \t\r";

/// What is left of one line.
class Line {
 public:
  explicit Line(std::string_view text) : text_(text) { skip_space(); }

  bool ended() const { return text_.empty() || text_.front() == '#'; }
  bool take(char wanted) {
    if (!text_.starts_with(wanted)) {
      return false;
    }
    text_.remove_prefix(1);
    skip_space();
    return true;
  }
  /// A bare key or a number.
  std::string take_word() {
    constexpr std::string_view kWord =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+";
    const std::size_t end = std::min(text_.find_first_not_of(kWord), text_.size());
    std::string word(text_.substr(0, end));
    text_.remove_prefix(end);
    skip_space();
    return word;
  }
  /// A text in quotes of either kind; in double ones a backslash keeps what follows it.
  std::optional<std::string> take_text() {
    const char quote = text_.front();
    std::string value;
    for (std::size_t i = 1; i < text_.size(); ++i) {
      if (text_[i] == quote) {
        text_.remove_prefix(i + 1);
        skip_space();
        return value;
      }
      if (quote == '"' && text_[i] == '\\' && (++i == text_.size() || !is_plain(text_[i]))) {
        return std::nullopt;
      }
      value += text_[i];
    }
    return std::nullopt;
  }
  bool starts_text() const { return text_.starts_with('"') || text_.starts_with('\''); }
  std::string rest() const { return std::string(text_.substr(0, 40)); }

 private:
  static bool is_plain(char escaped) { return escaped == '"' || escaped == '\\'; }
  void skip_space() {
    text_.remove_prefix(std::min(text_.find_first_not_of(kSpace), text_.size()));
  }

  std::string_view text_;
};

/// A whole number as TOML writes it: 5, +5, -5, 1_000.
std::optional<std::string> number_of(std::string word) {
  const std::size_t first = word.starts_with('-') || word.starts_with('+') ? 1 : 0;
  if (word.size() == first || word.find_first_not_of("0123456789_", first) != std::string::npos ||
      word[first] == '_' || word.back() == '_') {
    return std::nullopt;
  }
  std::erase(word, '_');
  std::erase(word, '+');
  return word;
}

/// What is wrong with the line; empty if nothing is.
std::string read_line(Line line, ConfigEntry& entry) {
  if (line.take('[')) {
    return "tables are not used here; write every setting as key = value";
  }
  entry.key = line.take_word();
  if (entry.key.empty() || !line.take('=') || line.ended()) {
    return "this is not key = value; write for example schedule = \"backward\"";
  }
  if (line.starts_text()) {
    auto text = line.take_text();
    if (!text) {
      return entry.key + ": the text is not closed, or has another escape than \\\" and \\\\";
    }
    entry.value = std::move(*text);
    entry.type = ConfigEntry::Type::kText;
  } else {
    const std::string rest = line.rest();
    auto number = number_of(line.take_word());
    if (!number || !line.ended()) {
      return entry.key + ": " + rest + " is neither a text in quotes nor a whole number";
    }
    entry.value = std::move(*number);
    entry.type = ConfigEntry::Type::kNumber;
  }
  return line.ended() ? "" : entry.key + ": something follows the value: " + line.rest();
}

tl::unexpected<Status> bad_line(const std::string& name,
                                std::size_t line,
                                const std::string& what) {
  return fail(StatusCode::kInvalidArgument, name + ":" + std::to_string(line) + ": " + what);
}

}  // namespace

Result<std::vector<ConfigEntry>> parse_config(std::string_view text, const std::string& name) {
  std::vector<ConfigEntry> entries;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const Line line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ended()) {
      continue;
    }
    ConfigEntry entry;
    entry.line = number;
    std::string wrong = read_line(line, entry);
    const auto twin = std::find_if(entries.begin(), entries.end(), [&](const ConfigEntry& other) {
      return other.key == entry.key;
    });
    if (wrong.empty() && twin != entries.end()) {
      wrong = entry.key + " is set on line " + std::to_string(twin->line) + " already";
    }
    if (!wrong.empty()) {
      return bad_line(name, number, wrong);
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

Result<std::vector<ConfigEntry>> read_config(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file.is_open()) {
    text << file.rdbuf();  // unlike iterators it does not throw for a directory
  }
  if (!file.is_open() || errno != 0) {
    return fail(StatusCode::kInvalidArgument,
                "cannot read the configuration file " + path + ": " + std::strerror(errno));
  }
  return parse_config(text.str(), path);
}

}  // namespace stretto::cli

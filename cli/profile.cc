// SPDX-License-Identifier: Apache-2.0
#include "profile.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <tuple>

namespace stretto::cli {
namespace {

constexpr double kLongestLayerUs = 1e9;
constexpr double kLargestLayerBytes = 1e12;
constexpr std::size_t kMostLayers = 100'000;
constexpr std::size_t kHeaderLines = 3;

tl::unexpected<Status> bad_line(const std::string& name,
                                std::size_t line,
                                const std::string& what) {
  return fail(StatusCode::kInvalidArgument,
              name + ", line " + std::to_string(line) + ": " + what +
                  "; a profile is a line of words, the number of batches, the number of layers, "
                  "then one \"microseconds,bytes\" per layer, output layer first");
}

/// A whole text as a number that is neither negative nor larger than `most`.
std::optional<double> number(std::string_view text, double most) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || !(value >= 0 && value <= most)) {
    return std::nullopt;
  }
  return value;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  while (!lines.empty() && lines.back().empty()) {
    lines.pop_back();
  }
  return lines;
}

std::chrono::nanoseconds nanoseconds_of(double microseconds) {
  return std::chrono::nanoseconds(std::llround(microseconds * 1e3));
}

}  // namespace

Status ReplayScale::validate() const {
  for (const auto& [value, what, most] : {std::tuple(time, "--time-scale", 1e6),
                                          {bytes, "--byte-scale", 1e6},
                                          {forward_ratio, "--forward-ratio", 1e3}}) {
    if (!(value >= 0 && value <= most)) {
      return {StatusCode::kInvalidArgument,
              std::string(what) + " is " + std::to_string(value) +
                  "; it must not be negative, nor " + "larger than " +
                  std::to_string(static_cast<std::int64_t>(most))};
    }
  }
  return {};
}

Result<std::vector<ProfileLayer>> parse_profile(std::string_view text, const std::string& name) {
  const auto lines = lines_of(text);
  if (lines.size() < kHeaderLines) {
    return bad_line(name, lines.size() + 1, "the file ends");
  }
  for (std::size_t i = 1; i < kHeaderLines; ++i) {
    if (!number(lines[i], static_cast<double>(kMostLayers))) {
      return bad_line(name, i + 1, "'" + std::string(lines[i].substr(0, 40)) + "' is not a count");
    }
  }
  const auto said = static_cast<std::size_t>(*number(lines[2], static_cast<double>(kMostLayers)));
  std::vector<ProfileLayer> layers;
  for (std::size_t i = kHeaderLines; i < lines.size(); ++i) {
    const std::string_view line = lines[i];
    const std::size_t comma = line.find(',');
    const auto time = number(line.substr(0, comma), kLongestLayerUs);
    const auto bytes = comma == std::string_view::npos
                           ? std::nullopt
                           : number(line.substr(comma + 1), kLargestLayerBytes);
    if (!time || !bytes) {
      return bad_line(
          name, i + 1, "'" + std::string(line.substr(0, 40)) + "' is not \"microseconds,bytes\"");
    }
    layers.push_back({*time, *bytes});
  }
  if (layers.empty() || layers.size() != said) {
    return bad_line(name,
                    kHeaderLines,
                    std::to_string(said) + " layers are announced and " +
                        std::to_string(layers.size()) + " follow");
  }
  return layers;
}

Result<std::vector<ProfileLayer>> read_profile(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file.is_open()) {
    text << file.rdbuf();  // unlike iterators it does not throw for a directory
  }
  if (!file.is_open() || errno != 0) {
    return fail(StatusCode::kUnavailable,
                "cannot read the profile " + path + ": " + std::strerror(errno) +
                    "; three lie in bench/profiles of the sources");
  }
  return parse_profile(text.str(), path);
}

std::vector<ReplayLayer> scale_profile(const std::vector<ProfileLayer>& profile,
                                       const ReplayScale& scale) {
  std::vector<ReplayLayer> layers;
  layers.reserve(profile.size());
  for (const ProfileLayer& layer : profile) {
    const double backward_us = layer.backward_us * scale.time;
    layers.push_back(
        {nanoseconds_of(backward_us * scale.forward_ratio),
         nanoseconds_of(backward_us),
         std::max<std::size_t>(1, static_cast<std::size_t>(layer.bytes * scale.bytes / 4))});
  }
  return layers;
}

}  // namespace stretto::cli

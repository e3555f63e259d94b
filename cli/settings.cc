// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include "base/log.hpp"
#include "config_file.hpp"
#include "engine/codec_choice.hpp"

#include "stretto/options.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include <unistd.h>

namespace stretto::cli {
namespace {

using Check = Status (*)(const std::string& value);

/// How a configuration file writes a value, and what must be true of it.
struct InFile {
  enum class Form { kText, kNumber, kEither, kNever };
  Form form = Form::kNever;
  Check check = nullptr;
};
using Form = InFile::Form;

struct Known {
  const char* name;
  const char* fallback;
  const char* help;
  InFile in_file;
};

template <typename T>
Status status_of(const Result<T>& result) {
  return result ? Status::ok() : result.error();
}

Status anything(const std::string& /*value*/) {
  return {};
}

Status check_schedule(const std::string& value) {
  return status_of(parse_schedule(value));
}

Status check_exchange(const std::string& value) {
  return status_of(parse_exchange(value));
}

Status check_order(const std::string& value) {
  return status_of(parse_order(value));
}

Status check_transport(const std::string& value) {
  EngineOptions options;
  options.transport = value;
  return options.validate();
}

Status check_link(const std::string& value) {
  return status_of(parse_link(value));
}

Status check_chunk(const std::string& value) {
  EngineOptions options;
  if (value != "auto") {
    STRETTO_TRY_ASSIGN(options.chunk_bytes, parse_bytes(value));
  }
  return options.validate();
}

Status check_timeout(const std::string& value) {
  return status_of(parse_duration(value));
}

Status check_window(const std::string& value) {
  return value == "auto" ? Status() : status_of(parse_bytes(value));
}

Status check_number(const std::string& value, std::size_t most) {
  std::size_t number = 0;
  const char* end = value.data() + value.size();
  const auto [rest, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || rest != end || number > most) {
    return {StatusCode::kInvalidArgument, value + " is not from 0 to " + std::to_string(most)};
  }
  return {};
}

Status check_threads(const std::string& value) {
  return check_number(value, 64);
}

Status check_minimum(const std::string& value) {
  return check_number(value, SIZE_MAX);
}

Status check_codecs(const EngineOptions& options) {
  return status_of(engine::choose_codecs({}, options));
}

Status check_codec(const std::string& value) {
  EngineOptions options;
  options.codec = value;
  return check_codecs(options);
}

Status check_codec_rules(const std::string& value) {
  EngineOptions options;
  options.codec_rules = value;
  return check_codecs(options);
}

Status check_port(const std::string& value) {
  return check_number(value, 65535);
}

Status check_log(const std::string& value) {
  return status_of(parse_log_level(value));
}

constexpr std::array<Known, 22> kKnown{{
    {"STRETTO_SCHEDULE",
     "backward",
     "when gradients travel: backward or sequential",
     {Form::kText, check_schedule}},
    {"STRETTO_EXCHANGE",
     "auto",
     "auto, owner, one-hop, shared, ring or mpi",
     {Form::kText, check_exchange}},
    {"STRETTO_ORDER",
     "rank",
     "of sums: rank, or any for the exchanges ring and mpi",
     {Form::kText, check_order}},
    {"STRETTO_TRANSPORT", "auto", "auto, inproc, tcp or ucx", {Form::kText, check_transport}},
    {"STRETTO_LINK", "none", "emulated link: RATE[,DELAY]", {Form::kText, check_link}},
    {"STRETTO_CHUNK",
     "auto",
     "unit of transfer: a size such as 1m, 0 for a message per parameter, or auto for a 64th of "
     "the gradients",
     {Form::kEither, check_chunk}},
    {"STRETTO_REDUCTION_THREADS",
     "0",
     "threads that add beside the progress thread",
     {Form::kNumber, check_threads}},
    {"STRETTO_CODEC",
     "none",
     "of gradients on the wire: none, fp16, int8, topk:1%, ... (stretto bench codec --help)",
     {Form::kText, check_codec}},
    {"STRETTO_CODEC_RULES",
     "",
     "codecs by name of parameter, the first that fits: *.bias=none,head.*=int8",
     {Form::kText, check_codec_rules}},
    {"STRETTO_CODEC_MINIMUM",
     "1024",
     "elements that a matrix has at least to be encoded without a rule",
     {Form::kNumber, check_minimum}},
    {"STRETTO_CODEC_THREADS",
     "1",
     "threads that encode and decode",
     {Form::kNumber, check_threads}},
    {"STRETTO_TIMEOUT",
     "60s",
     "for ranks to appear and for a step's waits",
     {Form::kText, check_timeout}},
    {"STRETTO_TOKEN", "", "secret shared by the ranks of a job", {Form::kText, anything}},
    {"STRETTO_INTERFACE", "", "name or address of the interface for data", {Form::kText, anything}},
    {"STRETTO_PORTS", "0", "first port for data; 0: any free one", {Form::kNumber, check_port}},
    {"STRETTO_TRACE",
     "",
     "file for a Chrome trace; with several ranks FILE.0, FILE.1, ...",
     {Form::kText, anything}},
    {"STRETTO_METRICS", "", "file for one JSON line per rank and step", {Form::kText, anything}},
    {"STRETTO_WINDOW",
     "auto",
     "bytes in flight from each peer (tcp and ucx)",
     {Form::kEither, check_window}},
    {"STRETTO_LOG", "warning", "debug, info, warning, error or off", {Form::kText, check_log}},
    {"STRETTO_TARGET",
     "",
     "instruction set of the kernels; empty: the best that is here",
     {Form::kText, anything}},
    {"MASTER_ADDR", "127.0.0.1", "where rank 0 runs", {}},
    {"MASTER_PORT", "29500", "rank 0's port for control connections", {}},
}};

constexpr std::string_view kPrefix = "STRETTO_";

/// STRETTO_REDUCTION_THREADS is reduction_threads in a file.
std::string key_of(const Known& known) {
  std::string key(known.name + kPrefix.size());
  std::transform(key.begin(), key.end(), key.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  return key;
}

const Known* find_key(const std::string& key) {
  const auto found = std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& known) {
    return known.in_file.form != Form::kNever && key_of(known) == key;
  });
  return found == kKnown.end() ? nullptr : &*found;
}

std::string all_keys() {
  std::string keys;
  for (const Known& known : kKnown) {
    if (known.in_file.form != Form::kNever) {
      keys += (keys.empty() ? "" : ", ") + key_of(known);
    }
  }
  return keys;
}

/// What is set in the environment; null if nothing is, or the empty text.
const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

Status check_entry(const ConfigEntry& entry, const Known* known) {
  if (known == nullptr) {
    return {StatusCode::kInvalidArgument,
            "there is no setting " + entry.key + "; there are " + all_keys()};
  }
  const Form wrong = entry.type == ConfigEntry::Type::kText ? Form::kNumber : Form::kText;
  if (known->in_file.form == wrong) {
    return {StatusCode::kInvalidArgument,
            entry.key +
                (wrong == Form::kText ? " must be a text; write for example "
                                      : " must be a number; write for example ") +
                entry.key + " = " + (wrong == Form::kText ? "\"" : "") +
                (*known->fallback == '\0' ? "..." : known->fallback) +
                (wrong == Form::kText ? "\"" : "")};
  }
  const Status checked = known->in_file.check(entry.value);
  return checked.is_ok() ? checked
                         : Status(StatusCode::kInvalidArgument,
                                  entry.key + ": " + std::string(checked.message()));
}

}  // namespace

Status apply_config(const std::string& path, SettingOrigins& origins) {
  STRETTO_TRY_ASSIGN(const auto entries, read_config(path));
  for (const ConfigEntry& entry : entries) {
    const std::string place = path + ":" + std::to_string(entry.line);
    const Known* const known = find_key(entry.key);
    if (const Status checked = check_entry(entry, known); !checked.is_ok()) {
      return {checked.code(), place + ": " + std::string(checked.message())};
    }
    if (variable(known->name) == nullptr) {
      ::setenv(known->name, entry.value.c_str(), 1);
      origins[known->name] = place;
    }
  }
  return {};
}

std::vector<SettingState> read_settings(const SettingOrigins& origins) {
  std::vector<SettingState> settings;
  for (const Known& known : kKnown) {
    const char* const value = variable(known.name);
    const auto origin = origins.find(known.name);
    SettingState state{known.name,
                       value != nullptr ? value : known.fallback,
                       value == nullptr          ? "default"
                       : origin == origins.end() ? "environment"
                                                 : origin->second,
                       known.help};
    if (value != nullptr && std::string_view(known.name) == "STRETTO_TOKEN") {
      state.value = "(set)";  // what doctor prints is pasted into reports
    }
    settings.push_back(std::move(state));
  }
  return settings;
}

std::vector<std::string> unknown_settings() {
  std::vector<std::string> unknown;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (name.starts_with(kPrefix) &&
        std::none_of(
            kKnown.begin(), kKnown.end(), [&](const Known& known) { return name == known.name; })) {
      unknown.emplace_back(name);
    }
  }
  std::sort(unknown.begin(), unknown.end());
  return unknown;
}

}  // namespace stretto::cli

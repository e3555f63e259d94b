// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <array>
#include <cstdlib>
#include <string>
#include <utility>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace stretto {
namespace {

spdlog::level::level_enum convert(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

/// What STRETTO_LOG says; without it, or where it says nothing that is known, warnings and errors.
Result<LogLevel> level_from_environment() {
  const char* text = std::getenv("STRETTO_LOG");
  return text == nullptr || *text == '\0' ? LogLevel::kWarning : parse_log_level(text);
}

spdlog::logger& logger() {
  // Never destroyed: threads may log while the process ends.
  static spdlog::logger& instance = *[] {
    auto* made = new spdlog::logger("stretto", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    const auto level = level_from_environment();
    made->set_level(convert(level.value_or(LogLevel::kWarning)));
    made->set_pattern("stretto: %l: %v");
    if (!level) {
      made->warn("STRETTO_LOG is not heeded: " + std::string(level.error().message()));
    }
    return made;
  }();
  return instance;
}

}  // namespace

Result<LogLevel> parse_log_level(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, LogLevel>, 5> kLevels{
      {{"debug", LogLevel::kDebug},
       {"info", LogLevel::kInfo},
       {"warning", LogLevel::kWarning},
       {"error", LogLevel::kError},
       {"off", LogLevel::kOff}}};
  for (const auto& [name, level] : kLevels) {
    if (text == name) {
      return level;
    }
  }
  return fail(
      StatusCode::kInvalidArgument,
      "there is no level '" + std::string(text) + "'; choose debug, info, warning, error or off");
}

void set_log_level(LogLevel level) {
  logger().set_level(convert(level));
}

void set_log_rank(std::size_t rank) {
  logger().set_pattern("stretto: rank " + std::to_string(rank) + ": %l: %v");
}

void log(LogLevel level, std::string_view text) {
  logger().log(convert(level), spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace stretto

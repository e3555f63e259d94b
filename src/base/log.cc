// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <cstdlib>
#include <string>

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

LogLevel level_from_environment() {
  const char* text = std::getenv("STRETTO_LOG");
  const std::string_view level = text == nullptr ? "warning" : text;
  if (level == "debug") {
    return LogLevel::kDebug;
  }
  if (level == "info") {
    return LogLevel::kInfo;
  }
  if (level == "error") {
    return LogLevel::kError;
  }
  return level == "off" ? LogLevel::kOff : LogLevel::kWarning;
}

spdlog::logger& logger() {
  // Never destroyed: threads may log while the process ends.
  static spdlog::logger& instance = *[] {
    auto* made = new spdlog::logger("stretto", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_level(convert(level_from_environment()));
    made->set_pattern("stretto: %l: %v");
    return made;
  }();
  return instance;
}

}  // namespace

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

// SPDX-License-Identifier: Apache-2.0
#include "base/fault_point.hpp"

#include "base/log.hpp"

#include "stretto/options.hpp"

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>

namespace stretto {
namespace {

struct Fault {
  std::string name;
  std::size_t rank = 0;
  std::size_t first_pass = 1;
  int signal = 0;
  std::chrono::nanoseconds delay{0};
};

Fault fault;
std::atomic<std::size_t> passes{0};

Status cannot_read(std::string_view text) {
  return {StatusCode::kInvalidArgument,
          "cannot read '" + std::string(text) +
              "' as a fault; write for example chunk.launched@5, chunk.launched@5:stop or "
              "chunk.launched@5:delay=20ms"};
}

Result<Fault> parse_fault(std::string_view text) {
  Fault parsed;
  const auto at = text.find('@');
  if (at == std::string_view::npos || at == 0) {
    return fail(cannot_read(text));
  }
  parsed.name = text.substr(0, at);
  const auto colon = text.find(':', at);
  const std::string_view number = text.substr(at + 1, colon - at - 1);
  const auto [rest, error] =
      std::from_chars(number.data(), number.data() + number.size(), parsed.first_pass);
  if (error != std::errc() || rest != number.data() + number.size() || parsed.first_pass == 0) {
    return fail(cannot_read(text));
  }
  constexpr std::string_view kDelay = "delay=";
  const std::string_view what = colon == std::string_view::npos ? "kill" : text.substr(colon + 1);
  if (what == "kill" || what == "stop") {
    parsed.signal = what == "kill" ? SIGKILL : SIGSTOP;
  } else if (what.substr(0, kDelay.size()) == kDelay) {
    STRETTO_TRY_ASSIGN(parsed.delay, parse_duration(what.substr(kDelay.size())));
  } else {
    return fail(cannot_read(text));
  }
  return parsed;
}

/// Reads the environment before main, so that a place costs no more than a look at `armed`.
struct FromEnvironment {
  FromEnvironment() {
    const char* const text = std::getenv("STRETTO_FAULT");
    const char* const rank = std::getenv("STRETTO_FAULT_RANK");
    if (text == nullptr || rank == nullptr || *text == '\0') {
      return;
    }
    if (const Status status = arm_fault(text, std::strtoul(rank, nullptr, 10)); !status.is_ok()) {
      log(LogLevel::kWarning, "STRETTO_FAULT: " + std::string(status.message()));
    }
  }
};
const FromEnvironment from_environment;

}  // namespace

namespace fault_detail {

constinit std::atomic<bool> armed{false};

void pass(std::string_view name, std::size_t rank) noexcept {
  if (rank != fault.rank || name != fault.name) {
    return;
  }
  const std::size_t now = passes.fetch_add(1, std::memory_order_relaxed) + 1;
  if (fault.signal != 0 && now == fault.first_pass) {
    // To this thread: one for the process is taken by any, and this one may be far by then.
    static_cast<void>(::raise(fault.signal));
  } else if (fault.signal == 0 && now >= fault.first_pass) {
    std::this_thread::sleep_for(fault.delay);
  }
}

}  // namespace fault_detail

Status arm_fault(std::string_view text, std::size_t rank) {
  fault_detail::armed.store(false);
  passes.store(0);
  if (text.empty()) {
    return {};
  }
  STRETTO_TRY_ASSIGN(fault, parse_fault(text));
  fault.rank = rank;
  fault_detail::armed.store(true);
  return {};
}

std::size_t fault_passes() noexcept {
  return passes.load();
}

}  // namespace stretto

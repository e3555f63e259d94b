// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include <unistd.h>

namespace stretto::cli {
namespace {

struct Known {
  const char* name;
  const char* fallback;
  const char* help;
};

constexpr std::array<Known, 17> kKnown{{
    {"STRETTO_SCHEDULE", "backward", "when gradients travel: backward or sequential"},
    {"STRETTO_EXCHANGE", "auto", "auto, owner, one-hop or shared"},
    {"STRETTO_TRANSPORT", "auto", "auto, inproc, tcp or ucx"},
    {"STRETTO_LINK", "none", "emulated link: RATE[,DELAY]"},
    {"STRETTO_CHUNK",
     "auto",
     "unit of transfer: a size such as 1m, or auto for a 64th of the gradients"},
    {"STRETTO_REDUCTION_THREADS", "0", "threads that add beside the progress thread"},
    {"STRETTO_TIMEOUT", "60s", "for ranks to appear and for a step's waits"},
    {"STRETTO_TOKEN", "", "secret shared by the ranks of a job"},
    {"STRETTO_INTERFACE", "", "name or address of the interface for data"},
    {"STRETTO_PORTS", "0", "first port for data; 0: any free one"},
    {"STRETTO_TRACE", "", "file for a Chrome trace"},
    {"STRETTO_METRICS", "", "file for one JSON line per step"},
    {"STRETTO_WINDOW", "auto", "bytes in flight from each peer (tcp and ucx)"},
    {"STRETTO_LOG", "warning", "debug, info, warning, error or off"},
    {"STRETTO_TARGET", "", "instruction set of the kernels; empty: the best that is here"},
    {"MASTER_ADDR", "127.0.0.1", "where rank 0 runs"},
    {"MASTER_PORT", "29500", "rank 0's port for control connections"},
}};

}  // namespace

std::vector<SettingState> read_settings() {
  std::vector<SettingState> settings;
  for (const Known& known : kKnown) {
    const char* value = std::getenv(known.name);
    const bool set = value != nullptr && *value != '\0';
    SettingState state{
        known.name, set ? value : known.fallback, set ? "environment" : "default", known.help};
    if (set && std::string_view(known.name) == "STRETTO_TOKEN") {
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
    if (name.starts_with("STRETTO_") &&
        std::none_of(
            kKnown.begin(), kKnown.end(), [&](const Known& known) { return name == known.name; })) {
      unknown.emplace_back(name);
    }
  }
  std::sort(unknown.begin(), unknown.end());
  return unknown;
}

}  // namespace stretto::cli

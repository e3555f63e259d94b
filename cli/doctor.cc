// SPDX-License-Identifier: Apache-2.0
//
// stretto doctor: what this build has, what this host offers, and what stands in the way.
#include "command.hpp"
#include "exchange/mpi/factory.hpp"
#include "rendezvous/socket.hpp"
#include "settings.hpp"
#include "transport/ucx/factory.hpp"

#include "stretto/options.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <thread>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#ifdef STRETTO_CLI_HAS_KERNELS
#include "kernels/kernels.hpp"
#endif

namespace stretto::cli {
namespace {

enum class Verdict { kFine, kNote, kWrong };

/// One line of the report.
struct Finding {
  std::string name;
  std::string value;
  Verdict verdict = Verdict::kFine;
  std::string advice = {};  ///< what to do, unless all is fine
};
using Findings = std::vector<Finding>;

std::string gibibytes(double bytes) {
  std::ostringstream text;
  text.precision(1);
  text << std::fixed << bytes / (1024.0 * 1024.0 * 1024.0) << " GiB";
  return text.str();
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

void examine_build(Findings& findings) {
  findings.push_back({"version", STRETTO_VERSION});
#if defined(__clang__)
  findings.push_back({"compiler", "clang " __clang_version__});
#else
  findings.push_back({"compiler", "g++ " __VERSION__});
#endif
  findings.push_back({"build type", STRETTO_BUILD_TYPE});
  findings.push_back({"libtorch adapter", STRETTO_TORCH});
  const auto ucx = transport::ucx_version();
  findings.push_back({"UCX",
                      ucx ? *ucx + " built in; for networks that you trust altogether: a forged "
                                   "message ends the process"
                          : "not built in"});
  const auto mpi = exchange::mpi_version();
  findings.push_back({"MPI",
                      mpi ? *mpi + " built in; opens ports of its own, for networks that you trust "
                                   "altogether"
                          : "not built in"});
  findings.push_back({"CUDA", "not built in"});
}

/// The vector extensions that the kernels have code for.
std::string cpu_features() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with("flags") && !line.starts_with("Features")) {
      continue;
    }
    std::istringstream words(line.substr(line.find(':') + 1));
    std::string found;
    for (std::string word; words >> word;) {
      for (const char* wanted :
           {"sse4_2", "avx2", "f16c", "avx512f", "avx512bw", "avx512_bf16", "asimd", "sve"}) {
        if (word == wanted) {
          found += (found.empty() ? "" : " ") + word;
        }
      }
    }
    return found.empty() ? "none that the kernels know" : found;
  }
  return "unknown";
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) {
      return line.substr(std::min(line.find(':') + 2, line.size()));
    }
  }
  return "unknown";
}

void examine_processor(Findings& findings) {
  findings.push_back({"processor", cpu_model()});
  findings.push_back({"processor features", cpu_features()});
#ifdef STRETTO_CLI_HAS_KERNELS
  findings.push_back({"kernels", std::string(kernels::target_name())});
#endif
  findings.push_back({"cores", std::to_string(std::thread::hardware_concurrency())});
}

void examine_memory(Findings& findings) {
  struct sysinfo info {};
  if (::sysinfo(&info) == 0) {
    const double unit = info.mem_unit;
    findings.push_back({"memory",
                        gibibytes(static_cast<double>(info.totalram) * unit) + ", free " +
                            gibibytes(static_cast<double>(info.freeram) * unit)});
  }
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0) {
    findings.push_back(
        {"/dev/shm",
         gibibytes(static_cast<double>(shm.f_blocks) * static_cast<double>(shm.f_frsize)) +
             " (Stretto does not need it)"});
  } else {
    findings.push_back({"/dev/shm", "none (Stretto does not need it)"});
  }
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    Finding finding{"open files", std::to_string(files.rlim_cur) + " at most"};
    if (files.rlim_cur < 1024) {
      finding.verdict = Verdict::kNote;
      finding.advice = "jobs of many ranks need more: ulimit -n 4096";
    }
    findings.push_back(std::move(finding));
  }
}

std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    ::inet_ntop(
        AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else {
    ::inet_ntop(
        AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof text);
  }
  return text;
}

void examine_interfaces(Findings& findings) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    findings.push_back({"interfaces", "unknown"});
    return;
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr ||
        (entry->ifa_addr->sa_family != AF_INET && entry->ifa_addr->sa_family != AF_INET6)) {
      continue;
    }
    const std::string name = std::string("interface ") + entry->ifa_name;
    const std::string value =
        text_of(entry->ifa_addr) + ((entry->ifa_flags & IFF_UP) != 0U ? "" : " (down)");
    const auto same = std::find_if(findings.begin(), findings.end(), [&](const Finding& finding) {
      return finding.name == name;
    });
    if (same != findings.end()) {
      same->value += ", " + value;
    } else {
      findings.push_back({name, value});
    }
  }
}

void examine_network(Findings& findings) {
  utsname system{};
  if (::uname(&system) == 0) {
    findings.push_back(
        {"host", std::string(system.nodename) + ", " + system.sysname + " " + system.release});
  }
  const std::string control = first_line("/proc/sys/net/ipv4/tcp_congestion_control");
  Finding congestion{"congestion control", control.empty() ? "unknown" : control};
  if (control == "bbr") {
    congestion.verdict = Verdict::kNote;
    congestion.advice = "with several senders to one receiver cubic was three times faster";
  }
  findings.push_back(std::move(congestion));
  examine_interfaces(findings);
}

/// Where a program lies that PATH names; empty if nowhere.
std::string find_program(std::string_view name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto file = std::filesystem::path(folder.empty() ? "." : folder) / name;
    std::error_code ignored;
    if (std::filesystem::is_regular_file(file, ignored) && ::access(file.c_str(), X_OK) == 0) {
      return file.string();
    }
  }
  return {};
}

/// What can start ranks here, beside `stretto run`.
void examine_launchers(Findings& findings) {
  for (const char* launcher : {"srun", "mpirun", "torchrun"}) {
    const std::string found = find_program(launcher);
    findings.push_back({launcher, found.empty() ? "not found" : found});
  }
}

void examine_settings(Findings& findings) {
  Finding finding{"settings", "can be read"};
  const auto group = GroupOptions::from_environment();
  const auto engine = EngineOptions::from_environment();
  if (!group || !engine) {
    finding.verdict = Verdict::kWrong;
    finding.value = "cannot be read";
    finding.advice = std::string((!group ? group.error() : engine.error()).message());
  }
  findings.push_back(std::move(finding));
  for (const std::string& name : unknown_settings()) {
    findings.push_back({name, "set", Verdict::kNote, "nothing reads it: is it misspelt?"});
  }
  if (!group) {
    return;
  }
  const auto deadline = Deadline::after(std::chrono::seconds(10));
  Finding port{"MASTER_PORT", std::to_string(group->master_port) + " is free"};
  const auto listener =
      rendezvous::listen_for_ranks(group->master_address, group->master_port, deadline);
  if (!listener) {
    port.verdict = Verdict::kNote;
    port.value = std::to_string(group->master_port) + " is not free";
    port.advice = listener.error().message();
  }
  findings.push_back(std::move(port));
}

Findings examine() {
  Findings findings;
  examine_build(findings);
  examine_processor(findings);
  examine_memory(findings);
  examine_network(findings);
  examine_launchers(findings);
  examine_settings(findings);
  return findings;
}

std::string_view mark(Verdict verdict) {
  return verdict == Verdict::kFine ? "ok" : verdict == Verdict::kNote ? "note" : "wrong";
}

void print_json(const Findings& findings, const std::vector<SettingState>& settings) {
  nlohmann::ordered_json document;
  for (const Finding& finding : findings) {
    nlohmann::ordered_json entry{
        {"name", finding.name}, {"value", finding.value}, {"verdict", mark(finding.verdict)}};
    if (!finding.advice.empty()) {
      entry["advice"] = finding.advice;
    }
    document["findings"].push_back(std::move(entry));
  }
  for (const SettingState& setting : settings) {
    document["settings"].push_back(nlohmann::ordered_json{{"name", setting.name},
                                                          {"value", setting.value},
                                                          {"origin", setting.origin},
                                                          {"help", setting.help}});
  }
  std::cout << document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(text.size() + 1, width), ' ');
  return text;
}

void print_text(const Findings& findings, const std::vector<SettingState>& settings, bool color) {
  for (const Finding& finding : findings) {
    std::cout << padded(finding.name, 24) << finding.value << "\n";
    if (finding.verdict != Verdict::kFine) {
      const char* start = !color                               ? ""
                          : finding.verdict == Verdict::kWrong ? "\x1b[31m"
                                                               : "\x1b[33m";
      std::cout << padded("", 23) << start << mark(finding.verdict) << ": " << finding.advice
                << (color ? "\x1b[0m" : "") << "\n";
    }
  }
  std::cout << (settings.empty() ? "" : "\n");
  for (const SettingState& setting : settings) {
    std::cout << padded(setting.name, 28) << padded(setting.value.empty() ? "-" : setting.value, 16)
              << padded("(" + setting.origin + ")", 15) << setting.help << "\n";
  }
}

}  // namespace

void add_doctor(CLI::App& app, Context& context) {
  // Shared by the parser, which fills it, and the callback, which reads it.
  const auto with_settings = std::make_shared<bool>(false);
  CLI::App* command =
      app.add_subcommand("doctor", "Say what this build has and what this host offers");
  command->add_flag("--settings", *with_settings, "Also every setting, its value and its origin");
  command->footer(
      "Examples:\n"
      "  stretto doctor\n"
      "  stretto doctor --settings --json\n"
      "Ends with 1 if something is wrong.");
  command->callback([with_settings, &context] {
    const Findings findings = examine();
    const auto settings =
        *with_settings ? read_settings(context.origins) : std::vector<SettingState>{};
    if (context.json) {
      print_json(findings, settings);
    } else {
      print_text(findings, settings, context.use_color(STDOUT_FILENO));
    }
    const bool wrong = std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
      return finding.verdict == Verdict::kWrong;
    });
    context.exit_code = wrong ? kExitCheckFailed : kExitOk;
  });
}

}  // namespace stretto::cli

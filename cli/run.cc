// SPDX-License-Identifier: Apache-2.0
//
// stretto run: as many ranks as asked for on this host, with the variables by which they find each
// other.
#include "command.hpp"
#include "rendezvous/socket.hpp"
#include "supervisor.hpp"

#include "stretto/options.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <random>

namespace stretto::cli {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

struct RunOptions {
  std::size_t ranks = 1;
  std::size_t hosts = 1;
  std::size_t host = 0;
  std::string master;
  bool no_prefix = false;
  Variables settings;  // STRETTO_* from options
};

/// One option of `run` that becomes one variable of the ranks.
struct Setting {
  const char* option;
  const char* variable;
  const char* help;
};
constexpr std::array<Setting, 13> kSettings{{
    {"--link", "STRETTO_LINK", "Emulate a link: RATE[,DELAY], for example 1gbit or 500mbit,2ms"},
    {"--schedule", "STRETTO_SCHEDULE", "backward (default) or sequential"},
    {"--exchange", "STRETTO_EXCHANGE", "auto, owner, one-hop, shared, ring or mpi"},
    {"--order", "STRETTO_ORDER", "Of sums: rank (default), or any for the exchanges ring and mpi"},
    {"--transport", "STRETTO_TRANSPORT", "auto, inproc, tcp or ucx"},
    {"--codec", "STRETTO_CODEC", "Of gradients on the wire: none, fp16, int8, topk:1%, ..."},
    {"--codec-rules", "STRETTO_CODEC_RULES", "By name of parameter: '*.bias=none,head.*=int8'"},
    {"--chunk", "STRETTO_CHUNK", "Unit of transfer, for example 1m; 0: a message per parameter"},
    {"--timeout", "STRETTO_TIMEOUT", "For ranks to appear and for a step's waits, e.g. 60s"},
    {"--token", "STRETTO_TOKEN", "Secret shared by the ranks (default on one host: a random one)"},
    {"--interface", "STRETTO_INTERFACE", "Name or address of the interface for data"},
    {"--ports", "STRETTO_PORTS", "First port for data; rank r takes this + r"},
    {"--metrics", "STRETTO_METRICS", "File for one JSON line per rank and step"},
}};

std::string random_token() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 32; ++i) {
    token += "0123456789abcdef"[random() % 16];
  }
  return token;
}

/// Reads what the ranks would read, so that a mistake is one line and not one per rank.
Status check_settings(const Variables& settings) {
  for (const auto& [name, value] : settings) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  STRETTO_TRY(EngineOptions::from_environment());
  return {};
}

struct Master {
  std::string address = "127.0.0.1";
  std::string port;
};

Result<Master> find_master(const RunOptions& options) {
  Master master;
  if (!options.master.empty()) {
    const auto colon = options.master.rfind(':');
    std::uint16_t port = 0;
    const char* end = options.master.data() + options.master.size();
    const bool has_port = colon != std::string::npos;
    master.address = options.master.substr(0, colon);
    master.port = has_port ? options.master.substr(colon + 1) : "29500";
    if (has_port) {
      const auto [rest, error] = std::from_chars(end - master.port.size(), end, port);
      if (error != std::errc() || rest != end || port == 0) {
        return fail(
            StatusCode::kInvalidArgument,
            "cannot read '" + options.master + "' as HOST:PORT; write for example 10.0.0.1:29500");
      }
    }
    if (master.address.size() > 2 && master.address.front() == '[') {  // [::1]:29500
      master.address = master.address.substr(1, master.address.size() - 2);
    }
    return master;
  }
  if (options.hosts > 1) {
    return fail(StatusCode::kInvalidArgument,
                "with --nnodes, --master must say where rank 0 runs, for example --master "
                "10.0.0.1:29500, on every host the same");
  }
  if (const char* port = std::getenv("MASTER_PORT"); port != nullptr && *port != '\0') {
    master.port = port;
    return master;
  }
  STRETTO_TRY_ASSIGN(const auto port, rendezvous::find_free_port());
  master.port = std::to_string(port);
  return master;
}

/// What a rank is better off with, where the user has not said otherwise.
void add_defaults(Variables& environment) {
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    environment.emplace_back("OMP_NUM_THREADS", "1");  // ranks share the cores
  }
  // The C library gives large blocks back to the system as they are freed.  A step frees and takes
  // the same ones as the step before, and every page of them costs a fault again.
  const std::array variables{"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"};
  const auto is_set = [](const char* variable) { return std::getenv(variable) != nullptr; };
  if (std::none_of(variables.begin(), variables.end(), is_set)) {
    for (const char* variable : variables) {
      environment.emplace_back(variable, "1073741824");
    }
  }
}

std::vector<RankProgram> plan_ranks(const RunOptions& options, const Master& master) {
  std::vector<RankProgram> plan;
  for (std::size_t local = 0; local < options.ranks; ++local) {
    RankProgram rank;
    rank.rank = options.host * options.ranks + local;
    rank.environment = {{"RANK", std::to_string(rank.rank)},
                        {"WORLD_SIZE", std::to_string(options.ranks * options.hosts)},
                        {"LOCAL_RANK", std::to_string(local)},
                        {"LOCAL_WORLD_SIZE", std::to_string(options.ranks)},
                        {"MASTER_ADDR", master.address},
                        {"MASTER_PORT", master.port}};
    add_defaults(rank.environment);
    plan.push_back(std::move(rank));
  }
  return plan;
}

Result<int> run(const RunOptions& options, const Context& context) {
  if (context.program.empty()) {
    return fail(StatusCode::kInvalidArgument,
                "no program given; write it behind --, for example: stretto run -n 2 -- ./train");
  }
  if (options.host >= options.hosts) {
    return fail(StatusCode::kInvalidArgument,
                "--node-rank is " + std::to_string(options.host) + ", but --nnodes is " +
                    std::to_string(options.hosts) + "; hosts are counted from 0");
  }
  STRETTO_TRY_ASSIGN(const Master master, find_master(options));
  STRETTO_TRY(check_settings(options.settings));
  const char* token = std::getenv("STRETTO_TOKEN");
  if (options.hosts == 1 && (token == nullptr || *token == '\0')) {
    ::setenv("STRETTO_TOKEN", random_token().c_str(), 1);
  }
  SupervisorOptions supervised;
  supervised.program = context.program;
  supervised.prefix_lines = options.ranks > 1 && !options.no_prefix;
  supervised.quiet = context.quiet;
  return Supervisor(std::move(supervised)).run(plan_ranks(options, master));
}

}  // namespace

void add_run(CLI::App& app, Context& context) {
  // Shared by the parser, which fills it, and the callback, which reads it.
  const auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Start the ranks of a job on this host");
  command->add_option("-n,--ranks", options->ranks, "Ranks on this host")
      ->check(CLI::Range(1, 4096));
  command->add_option("--nnodes", options->hosts, "Hosts of the job")->check(CLI::Range(1, 4096));
  command->add_option("--node-rank", options->host, "Which of the hosts this is, from 0");
  command->add_option("--master", options->master, "HOST:PORT of rank 0 (default port 29500)");
  for (const Setting& setting : kSettings) {
    command->add_option_function<std::string>(
        setting.option,
        [options, variable = setting.variable](const std::string& value) {
          options->settings.emplace_back(variable, value);
        },
        setting.help);
  }
  command->add_option_function<std::string>(
      "--trace",
      [options](const std::string& value) {
        options->settings.emplace_back("STRETTO_TRACE", value);
      },
      "File for a Chrome trace; with several ranks FILE.0, FILE.1, ...");
  command->add_flag("--no-prefix", options->no_prefix, "Do not put [rank] in front of lines");
  command->footer(
      "Examples:\n"
      "  stretto run -n 4 -- ./train --epochs 3\n"
      "  stretto run -n 2 --link 1gbit,1ms --schedule sequential -- ./train\n"
      "  stretto run -n 2 --nnodes 2 --node-rank 1 --master 10.0.0.1:29500 -- ./train\n"
      "Where they are not set, ranks get OMP_NUM_THREADS=1 and MALLOC_TRIM_THRESHOLD_ and\n"
      "MALLOC_MMAP_THRESHOLD_ of 1 GiB: they keep the memory that a step frees for the next.\n"
      "Ends with 4 if a rank was killed or lost another, else with the code of the first rank "
      "that failed.");
  command->callback([options, &context] {
    const auto code = run(*options, context);
    if (code) {
      context.exit_code = *code;
    } else {
      fail_with(context, "run", code.error());
    }
  });
}

}  // namespace stretto::cli

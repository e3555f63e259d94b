// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"
#include "command.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include <unistd.h>

namespace stretto::cli {

int exit_code_for(const Status& status) noexcept {
  switch (status.code()) {
    case StatusCode::kOk:
      return kExitOk;
    case StatusCode::kPeerLost:
    case StatusCode::kAborted:
    case StatusCode::kDeadlineExceeded:
      return kExitPeerLost;
    case StatusCode::kInvalidArgument:
      return kExitUsage;
    case StatusCode::kInternal:
    case StatusCode::kWouldBlock:
      return kExitBug;
    case StatusCode::kUnavailable:
    case StatusCode::kUnsupported:
    case StatusCode::kCorruptWire:
      return kExitEnvironment;
  }
  return kExitBug;
}

bool Context::use_color(int descriptor) const {
  if (color == "auto") {
    return ::isatty(descriptor) == 1 && std::getenv("NO_COLOR") == nullptr;
  }
  return color == "always";
}

void complain(std::string_view command, std::string_view text) {
  std::string line = "stretto";
  if (!command.empty()) {
    line += " " + std::string(command);
  }
  line += ": " + std::string(text) + "\n";
  static_cast<void>(std::fwrite(line.data(), 1, line.size(), stderr));
}

void fail_with(Context& context, std::string_view command, const Status& status) {
  complain(command, status.message());
  context.exit_code = exit_code_for(status);
}

namespace {

void set_level(Context& context, const std::string& level) {
  // The ranks that `run` starts read the same variable.
  ::setenv("STRETTO_LOG", level.c_str(), 1);
  context.origins["STRETTO_LOG"] = "command line";
  set_log_level(parse_log_level(level).value_or(LogLevel::kWarning));  // the parser has looked
}

/// Before any command runs, and before anything reads a setting or logs.
void use_config(Context& context, const std::string& path) {
  if (const Status applied = apply_config(path, context.origins); !applied.is_ok()) {
    complain("", applied.message());
    throw CLI::RuntimeError(kExitUsage);  // which prints nothing more
  }
}

void add_global_options(CLI::App& app, Context& context) {
  app.set_version_flag("--version", "stretto " STRETTO_VERSION);
  app.set_help_flag("-h,--help", "Print this help and end");
  app.add_flag("--json", context.json, "Print results as JSON");
  app.add_flag("-q,--quiet", context.quiet, "Print nothing on stderr but errors");
  app.add_option("--color", context.color, "auto, always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  app.add_option_function<std::string>(
      "--config",
      [&context](const std::string& path) { use_config(context, path); },
      "File of settings (TOML): chunk = \"1m\", ...; below STRETTO_* and the command line");
  app.add_option_function<std::string>(
         "--log-level",
         [&context](const std::string& level) { set_level(context, level); },
         "How much the library says")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}));
}

int run_program(int argc, char** argv) {
  // What stands behind "--" is another program's command line and none of our parser's business.
  Context context;
  std::vector<std::string> arguments;
  int i = 1;
  for (; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    arguments.emplace_back(argv[i]);
  }
  for (++i; i < argc; ++i) {
    context.program.emplace_back(argv[i]);
  }
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants it

  CLI::App app("Stretto moves gradients while backward still runs: start, check and measure jobs.",
               "stretto");
  app.footer(
      "Examples:\n"
      "  stretto run -n 4 -- ./train --epochs 3        four ranks on this host\n"
      "  stretto run -n 2 --link 1gbit -- ./train      over an emulated 1 Gbit/s link\n"
      "  stretto bench allreduce -n 2                  how fast ranks add up\n"
      "  stretto run --config job.toml -n 2 -- ./train settings of the ranks from a file\n"
      "  stretto doctor                                what is here and what is missing\n"
      "Exit codes: 0 done, 1 check failed, 2 usage, 3 environment, 4 a rank was lost, 70 a bug,\n"
      "            128+n ended by signal n.");
  app.require_subcommand(1);
  app.fallthrough();
  add_global_options(app, context);
  add_run(app, context);
  add_bench(app, context);
  add_doctor(app, context);
  add_replay(app, context);
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    return app.exit(error, std::cout, std::cerr) == 0 ? kExitOk : kExitUsage;
  }
  return context.exit_code;
}

}  // namespace
}  // namespace stretto::cli

int main(int argc, char** argv) {
  try {
    return stretto::cli::run_program(argc, argv);
  } catch (const std::exception& error) {
    stretto::cli::complain("", std::string("a bug: ") + error.what() + "; please report it");
    return stretto::cli::kExitBug;
  }
}

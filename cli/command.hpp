// SPDX-License-Identifier: Apache-2.0
//
// How the program `stretto` is put together: each command is one file with one function add_NAME,
// named here and called in main.cc.  Results go to stdout, everything else to stderr.
#pragma once

#include "settings.hpp"

#include "stretto/status.hpp"

#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

namespace stretto::cli {

/// What the program ends with.  128 + n: ended by signal n.
enum ExitCode : int {
  kExitOk = 0,
  kExitCheckFailed = 1,  ///< the command ran and its answer is no
  kExitUsage = 2,        ///< the command line is wrong
  kExitEnvironment = 3,  ///< a file, port, program or address is not as needed
  kExitPeerLost = 4,     ///< a rank died or was lost
  kExitBug = 70,         ///< please report it
};

/// The exit code that says what to do about an error.
int exit_code_for(const Status& status) noexcept;

/// Options of every command, and what the command leaves behind.
///
/// Threading: confined(main thread).
struct Context {
  bool json = false;   ///< results as JSON, one document on stdout
  bool quiet = false;  ///< on stderr only errors
  std::string color = "auto";
  SettingOrigins origins;            ///< of variables that this process has set
  std::vector<std::string> program;  ///< what stands behind "--"
  int exit_code = kExitOk;           ///< set by the command's callback

  /// Whether to colour what goes to this descriptor.
  bool use_color(int descriptor) const;
};

/// One line on stderr: "stretto NAME: text".
void complain(std::string_view command, std::string_view text);
/// Prints the error and sets the exit code.
void fail_with(Context& context, std::string_view command, const Status& status);

// The commands.
void add_bench(CLI::App& app, Context& context);
/// Commands of `stretto bench`; called by add_bench.
void add_bench_codec(CLI::App& bench, Context& context);
void add_bench_convergence(CLI::App& bench, Context& context);
void add_doctor(CLI::App& app, Context& context);
void add_replay(CLI::App& app, Context& context);
void add_run(CLI::App& app, Context& context);

}  // namespace stretto::cli

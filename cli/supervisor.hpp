// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"
#include "line_prefixer.hpp"
#include "outlet.hpp"

#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <signal.h>
#include <sys/types.h>

namespace stretto::cli {

/// What `run` starts.
struct RankProgram {
  std::size_t rank = 0;
  std::vector<std::pair<std::string, std::string>> environment;  ///< over this process's own
};

struct SupervisorOptions {
  std::vector<std::string> program;
  bool prefix_lines = true;
  bool quiet = false;
  /// After a rank has failed the others end by themselves, with their own error.
  std::chrono::milliseconds own_end{5'000};
  /// The same if all that are left are stopped.
  std::chrono::milliseconds stopped_end{500};
  /// After SIGTERM they are killed.
  std::chrono::milliseconds after_term{10'000};
  /// Once this process was told to stop and all ranks have ended, output that nobody takes is lost.
  std::chrono::milliseconds last_words{500};
};

/// Runs one process per rank, passes their output on, and lets none of them outlive it.
///
/// A rank that writes more than anybody reads waits, as it would without this process; signals, the
/// ends of ranks and what goes elsewhere do not.
///
/// Each rank is the leader of a process group, so that what it has started ends with it.  If this
/// process dies, the system kills the ranks.
///
/// Threading: confined(main thread), with no others before all ranks are started: it forks.
class Supervisor {
 public:
  explicit Supervisor(SupervisorOptions options) : options_(std::move(options)) {}

  /// Starts all ranks and returns the exit code once all have ended.
  ///
  /// Errors: kUnavailable if the program cannot be started.
  Result<int> run(const std::vector<RankProgram>& ranks);

 private:
  struct Stream {
    FileDescriptor from;
    int to = 1;
    LinePrefixer prefixer;
  };
  struct Failure {
    std::size_t rank = 0;
    int code = 0;    ///< exit code, or
    int signal = 0;  ///< the signal that killed it
  };

  Status start(const RankProgram& rank);
  [[noreturn]] void become(const RankProgram& rank, pid_t parent, int out, int err, int report);
  void serve(Deadline until);
  std::size_t pass_on(Stream& stream);
  void print(int to, const std::string& text);
  /// As complain in command.hpp, but without waiting for whoever reads.
  void complain(std::string_view command, std::string_view text);
  Outlet& outlet_for(int to) noexcept { return to == 2 ? outlets_.back() : outlets_.front(); }
  void finish_output();
  bool has_given_up();
  void take_signals();
  void forward(int signal, bool from_terminal);
  void reap();
  void note_end(std::size_t rank, int status);
  void note_stops();
  std::string who_is_left() const;
  void blame(const std::vector<Failure>& failures);
  void escalate();
  void signal_all(int signal);
  int exit_code() const;

  SupervisorOptions options_;
  bool own_groups_ = true;
  std::map<pid_t, std::size_t> alive_;
  std::set<pid_t> stopped_;  // of those alive: by SIGSTOP and the like
  std::vector<Stream> streams_;
  std::vector<Outlet> outlets_;  // of stdout and stderr: one if both are the same
  FileDescriptor signals_;
  FileDescriptor news_;  // for ranks that still wait for one that has ended
  std::vector<Failure> batch_;
  std::optional<Failure> first_;
  int stopped_by_ = 0;   // the signal that this process was sent
  bool ending_ = false;  // what ranks end with no longer counts
  std::optional<Deadline> next_step_;
  int next_signal_ = 0;
  std::optional<Deadline> last_words_;
  bool at_bar_ = false;  // the terminal's line holds a progress bar
};

/// "SIGKILL", or "signal 64".
std::string signal_name(int signal);

}  // namespace stretto::cli

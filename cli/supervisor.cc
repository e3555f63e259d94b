// SPDX-License-Identifier: Apache-2.0
#include "supervisor.hpp"

#include "base/system_error.hpp"
#include "command.hpp"
#include "rendezvous/launcher_news.hpp"
#include "rendezvous/words.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stretto::cli {
namespace {

struct Pipe {
  FileDescriptor out;
  FileDescriptor in;
};

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return fail(system_error("cannot make a pipe"));
  }
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) {
    sigaddset(&set, signal);
  }
  struct sigaction hangup {};
  static_cast<void>(::sigaction(SIGHUP, nullptr, &hangup));
  if (hangup.sa_handler != SIG_IGN) {  // nohup
    sigaddset(&set, SIGHUP);
  }
  return set;
}

bool are_the_same(int first, int second) {
  struct stat a {};
  struct stat b {};
  return ::fstat(first, &a) == 0 && ::fstat(second, &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino;
}

Status cannot_start(const std::string& program, int error) {
  return {StatusCode::kUnavailable,
          "cannot start '" + program + "': " + std::strerror(error) +
              "; check the name and PATH (a program in this folder is ./" + program + ")"};
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

Result<int> Supervisor::run(const std::vector<RankProgram>& ranks) {
  const sigset_t watched = watched_signals();
  ::sigprocmask(SIG_BLOCK, &watched, nullptr);
  signals_ = FileDescriptor(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.is_open()) {
    return fail(system_error("cannot make a signalfd"));
  }
  for (std::size_t i = are_the_same(STDOUT_FILENO, STDERR_FILENO) ? 1 : 0; i < 2; ++i) {
    STRETTO_TRY_ASSIGN(Outlet made, Outlet::make());
    outlets_.push_back(std::move(made));
  }
  STRETTO_TRY_ASSIGN(news_, rendezvous::make_launcher_news());
  ::setenv(rendezvous::kLauncherNewsVariable, std::to_string(news_.get()).c_str(), 1);
  // A single rank keeps the terminal, so that it can be run under a debugger.
  own_groups_ = ranks.size() > 1;
  for (const RankProgram& rank : ranks) {
    if (Status started = start(rank); !started.is_ok()) {
      ending_ = true;
      signal_all(SIGKILL);
      while (!alive_.empty()) {
        serve(Deadline::after(std::chrono::seconds(1)));
      }
      return fail(started);
    }
  }
  while (!alive_.empty()) {
    serve(next_step_.value_or(Deadline::after(std::chrono::hours(1))));
    escalate();
  }
  finish_output();
  return exit_code();
}

Status Supervisor::start(const RankProgram& rank) {
  Pipe out;
  Pipe err;
  if (options_.prefix_lines) {
    STRETTO_TRY_ASSIGN(out, make_pipe());
    STRETTO_TRY_ASSIGN(err, make_pipe());
  }
  STRETTO_TRY_ASSIGN(Pipe report, make_pipe());
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    return {StatusCode::kUnavailable,
            std::string("cannot start a process: ") + std::strerror(errno) +
                "; raise the limit of processes (ulimit -u)"};
  }
  if (child == 0) {
    become(rank, parent, out.in.get(), err.in.get(), report.in.get());
  }
  if (own_groups_) {
    static_cast<void>(::setpgid(child, child));  // the child does too: whoever comes first
  }
  alive_[child] = rank.rank;
  report.in.reset();
  int error = 0;
  if (::read(report.out.get(), &error, sizeof error) == sizeof error) {
    return cannot_start(options_.program.front(), error);
  }
  if (options_.prefix_lines) {
    const std::string prefix = "[" + std::to_string(rank.rank) + "] ";
    const auto bars = streams_.empty() ? LinePrefixer::Bars::kKeep : LinePrefixer::Bars::kDrop;
    for (auto* pipe : {&out, &err}) {
      ::fcntl(pipe->out.get(), F_SETFL, O_NONBLOCK);
      streams_.push_back(Stream{std::move(pipe->out),
                                pipe == &out ? STDOUT_FILENO : STDERR_FILENO,
                                LinePrefixer(prefix, bars)});
    }
  }
  return {};
}

void Supervisor::become(const RankProgram& rank, pid_t parent, int out, int err, int report) {
  if (own_groups_) {
    ::setpgid(0, 0);
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, STDIN_FILENO);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {  // it died before prctl could have noticed
    ::_exit(kExitPeerLost);
  }
  if (out >= 0) {
    ::dup2(out, STDOUT_FILENO);
    ::dup2(err, STDERR_FILENO);
  }
  // A shell starts background jobs with SIGINT ignored; what this process forwards shall count.
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGTERM, SIG_DFL);
  const sigset_t watched = watched_signals();
  ::sigprocmask(SIG_UNBLOCK, &watched, nullptr);
  for (const auto& [name, value] : rank.environment) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  std::vector<char*> arguments;
  for (std::string& argument : options_.program) {
    arguments.push_back(argument.data());
  }
  arguments.push_back(nullptr);
  ::execvp(arguments.front(), arguments.data());
  const int error = errno;
  static_cast<void>(::write(report, &error, sizeof error));
  ::_exit(kExitEnvironment);
}

void Supervisor::serve(Deadline until) {
  std::vector<pollfd> entries{{.fd = signals_.get(), .events = POLLIN, .revents = 0}};
  for (const Outlet& outlet : outlets_) {
    entries.push_back({.fd = outlet.descriptor(), .events = POLLIN, .revents = 0});
  }
  const std::size_t first_stream = entries.size();
  for (const Stream& stream : streams_) {
    const int from = outlet_for(stream.to).has_room() ? stream.from.get() : -1;
    entries.push_back({.fd = from, .events = POLLIN, .revents = 0});
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until.left()).count();
  if (::poll(entries.data(), entries.size(), static_cast<int>(left)) <= 0) {
    return;
  }
  for (std::size_t i = 0; i < outlets_.size(); ++i) {
    if (entries[i + 1].revents != 0) {
      outlets_[i].drain();
    }
  }
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (entries[first_stream + i].revents != 0) {
      pass_on(streams_[i]);
    }
  }
  if (entries.front().revents != 0) {
    take_signals();
  }
}

/// One read, so that no stream keeps this process from the others and from signals.
std::size_t Supervisor::pass_on(Stream& stream) {
  std::array<char, 65536> bytes;
  const ssize_t got = ::read(stream.from.get(), bytes.data(), bytes.size());
  if (got > 0) {
    print(stream.to,
          stream.prefixer.take(std::string_view(bytes.data(), static_cast<std::size_t>(got))));
    return static_cast<std::size_t>(got);
  }
  if (got == 0) {
    print(stream.to, stream.prefixer.finish());
    stream.from.reset();
  }
  return 0;
}

void Supervisor::print(int to, const std::string& text) {
  if (text.empty()) {
    return;
  }
  std::string whole = text;
  if (at_bar_ && text.front() != '\r' && ::isatty(to) == 1) {
    whole.insert(0, "\x1b[K");  // what is left of the bar behind a shorter line
  }
  at_bar_ = text.back() == '\r';
  outlet_for(to).put(to, std::move(whole));
}

void Supervisor::complain(std::string_view command, std::string_view text) {
  outlet_for(STDERR_FILENO)
      .put(STDERR_FILENO, "stretto " + std::string(command) + ": " + std::string(text) + "\n");
}

/// After the last rank: what is in the pipes, and what was not written yet.
void Supervisor::finish_output() {
  // A process that has outlived its rank may write for ever; the rank has left no more than this.
  constexpr std::size_t kMostInAPipe = std::size_t{1} << 20;
  const auto serve_on = [this] {
    serve(last_words_.value_or(Deadline::after(std::chrono::hours(1))));
  };
  for (Stream& stream : streams_) {
    for (std::size_t left = kMostInAPipe; stream.from.is_open() && left > 0 && !has_given_up();) {
      if (!outlet_for(stream.to).has_room()) {
        serve_on();
        continue;
      }
      const std::size_t got = pass_on(stream);
      if (got == 0) {
        break;
      }
      left -= std::min(left, got);
    }
    print(stream.to, stream.prefixer.finish());
    stream.from.reset();
  }
  const auto is_empty = [](const Outlet& outlet) { return outlet.is_empty(); };
  while (!std::all_of(outlets_.begin(), outlets_.end(), is_empty) && !has_given_up()) {
    serve_on();
  }
}

/// Whether this process was told to stop, and nobody has read on since.
bool Supervisor::has_given_up() {
  if (stopped_by_ == 0) {
    return false;
  }
  if (!last_words_) {
    last_words_ = Deadline::after(options_.last_words);
  }
  return last_words_->passed();
}

void Supervisor::take_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal != SIGCHLD) {
      forward(signal, info.ssi_code == SI_KERNEL);
    }
  }
  reap();
}

void Supervisor::forward(int signal, bool from_terminal) {
  if (stopped_by_ != 0) {
    signal_all(SIGKILL);
    return;
  }
  stopped_by_ = signal;
  ending_ = true;
  if (own_groups_ || !from_terminal) {  // a terminal has told its own group itself
    signal_all(signal);
  }
  next_signal_ = SIGKILL;
  next_step_ = Deadline::after(options_.after_term);
}

void Supervisor::signal_all(int signal) {
  for (const auto& [pid, rank] : alive_) {
    static_cast<void>(::kill(own_groups_ ? -pid : pid, signal));
    static_cast<void>(::kill(own_groups_ ? -pid : pid, SIGCONT));  // a stopped one hears nothing
  }
}

void Supervisor::reap() {
  std::vector<Failure> failures;
  batch_.clear();
  while (true) {
    siginfo_t info{};
    // Still a zombie, the leader keeps its group's number from being given away.
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
      break;
    }
    const auto found = alive_.find(info.si_pid);
    if (found != alive_.end() && own_groups_) {
      static_cast<void>(::kill(-info.si_pid, SIGKILL));  // what the rank has left running
    }
    int status = 0;
    static_cast<void>(::waitpid(info.si_pid, &status, 0));
    if (found != alive_.end()) {
      note_end(found->second, status);
      stopped_.erase(found->first);
      alive_.erase(found);
    }
  }
  note_stops();
  if (!ending_ && !batch_.empty()) {
    blame(batch_);
  }
  if (next_step_ && !ending_ && stopped_.size() == alive_.size()) {
    // None of them can end by itself, but one that was killed may still be about to be gone.
    next_step_ = Deadline::after(options_.stopped_end);
  }
}

/// A rank that was stopped is missed by the others, and none of their words can say why.
void Supervisor::note_stops() {
  siginfo_t info{};
  while (::waitid(P_ALL, 0, &info, WSTOPPED | WCONTINUED | WNOHANG) == 0 && info.si_pid != 0) {
    const auto found = alive_.find(info.si_pid);
    if (found != alive_.end() && info.si_code == CLD_CONTINUED) {
      stopped_.erase(info.si_pid);
    } else if (found != alive_.end() && stopped_.insert(info.si_pid).second && !ending_) {
      complain("run",
               "rank " + std::to_string(found->second) + " was stopped by " +
                   signal_name(info.si_status) +
                   "; if it is not continued within seconds, the others take it for lost");
    }
    info = {};
  }
}

void Supervisor::note_end(std::size_t rank, int status) {
  if (WIFSIGNALED(status)) {
    batch_.push_back({rank, 0, WTERMSIG(status)});
  } else if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
    batch_.push_back({rank, WEXITSTATUS(status), 0});
  }
}

void Supervisor::blame(const std::vector<Failure>& failures) {
  // Several may have ended at once: a signal explains the others' errors, "a rank was lost" is
  // itself a consequence.
  const auto weight = [](const Failure& failure) {
    return failure.signal != 0 ? 0 : failure.code != kExitPeerLost ? 1 : 2;
  };
  std::vector<Failure> ordered = failures;
  std::stable_sort(ordered.begin(), ordered.end(), [&](const Failure& a, const Failure& b) {
    return weight(a) < weight(b);
  });
  for (const Failure& failure : ordered) {
    std::string text = "rank " + std::to_string(failure.rank);
    if (failure.signal != 0) {
      text += " was killed by " + signal_name(failure.signal);
      text += failure.signal == SIGKILL ? " (by hand, or for want of memory?)" : "";
    } else {
      text += " ended with exit code " + std::to_string(failure.code);
    }
    if (weight(failure) < 2) {  // whoever lost a rank did not die first
      rendezvous::write_launcher_news(news_.get(), text);
    }
    if (!first_ && !alive_.empty()) {
      text += "; the other ranks have " +
              std::to_string(
                  std::chrono::duration_cast<std::chrono::seconds>(options_.own_end).count()) +
              " s to end by themselves";
    }
    if (first_ && weight(failure) < weight(*first_)) {
      first_ = failure;  // it took longer to end than those that missed it
    }
    if (!first_) {
      first_ = failure;
      next_step_ = Deadline::after(options_.own_end);
      next_signal_ = SIGTERM;
    }
    complain("run", text);
  }
}

/// Who has not ended, and who of them could not: "rank 0 still ran, rank 2 was stopped".
std::string Supervisor::who_is_left() const {
  std::vector<std::size_t> running;
  std::vector<std::size_t> stopped;
  for (const auto& [pid, rank] : alive_) {
    (stopped_.contains(pid) ? stopped : running).push_back(rank);
  }
  std::string text;
  for (auto* ranks : {&running, &stopped}) {
    if (!ranks->empty()) {
      std::sort(ranks->begin(), ranks->end());
      text += (text.empty() ? "" : ", ") + rendezvous::name_ranks(*ranks);
      text += ranks == &running    ? " still ran"
              : ranks->size() == 1 ? " was stopped"
                                   : " were stopped";
    }
  }
  return text;
}

void Supervisor::escalate() {
  if (!next_step_ || !next_step_->passed()) {
    return;
  }
  if (!options_.quiet && !alive_.empty()) {
    complain("run", who_is_left() + "; sent " + signal_name(next_signal_));
  }
  signal_all(next_signal_);
  ending_ = true;
  next_signal_ = SIGKILL;
  next_step_ = Deadline::after(options_.after_term);
}

int Supervisor::exit_code() const {
  if (stopped_by_ != 0) {
    return 128 + stopped_by_;
  }
  if (!first_) {
    return kExitOk;
  }
  return first_->signal != 0 ? static_cast<int>(kExitPeerLost) : first_->code;
}

}  // namespace stretto::cli

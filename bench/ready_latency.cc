// SPDX-License-Identifier: Apache-2.0
//
// How long ready() takes while the network stands still: the peer is stopped (SIGSTOP) and so takes
// nothing, and is not yet taken for lost.  Prints one line of JSON.
//
//   ready_latency [PARAMETERS=20000] [KIB_EACH=16]
#include "rendezvous/socket.hpp"

#include "stretto/engine.hpp"
#include "stretto/group.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stretto {
namespace {

template <typename T>
T must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "ready_latency: %s\n", result.error().to_string().c_str());
    std::exit(3);
  }
  return std::move(*result);
}
void must(const Status& status) {
  if (!status.is_ok()) {
    std::fprintf(stderr, "ready_latency: %s\n", status.to_string().c_str());
    std::exit(3);
  }
}

struct Model {
  std::size_t parameters = 20'000;
  std::int64_t elements = 4096;
};

struct Member {
  std::shared_ptr<Group> group;
  std::unique_ptr<Engine> engine;
};

Member start(std::size_t rank, std::uint16_t port, const Model& shape) {
  GroupOptions options;
  options.rank = rank;
  options.size = 2;
  options.master_port = port;
  // Longer than the measurement: the peer stands still and counts as alive.
  options.dead_after = std::chrono::seconds(60);
  Member one;
  one.group = must(Group::join(options));
  EngineOptions engine;
  engine.exchange = ExchangeKind::kOwner;
  engine.transport = "tcp";
  one.engine = must(Engine::create(one.group, engine));
  for (std::size_t p = 0; p < shape.parameters; ++p) {
    must(one.engine->add_parameter({"p" + std::to_string(p), {shape.elements}}));
  }
  must(one.engine->commit());
  return one;
}

void end(Member& one) {
  must(one.engine->shutdown());
  one.engine.reset();
  one.group->leave();
}

std::vector<double> step(Engine& engine, std::size_t parameters, pid_t stopped) {
  std::vector<double> took(parameters);
  must(engine.begin_step({}));
  for (std::size_t p = 0; p < parameters; ++p) {
    const TimePoint begin = Clock::now();
    must(engine.ready(ParameterId{static_cast<std::uint32_t>(p)}));
    took[p] = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    // About as far apart as layers are, so that the progress thread runs in between.
    while (Clock::now() - begin < std::chrono::microseconds(50)) {
    }
  }
  if (stopped > 0) {
    ::kill(stopped, SIGCONT);
  }
  must(engine.finish_step());
  return took;
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const auto at = static_cast<std::size_t>(share * static_cast<double>(values.size()));
  return values[std::min(at, values.size() - 1)];
}

int run(const Model& shape) {
  constexpr int kWarmUp = 2;
  const std::uint16_t port = must(rendezvous::find_free_port());
  const pid_t peer = ::fork();
  if (peer == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Member one = start(1, port, shape);
    for (int i = 0; i < kWarmUp + 1; ++i) {
      step(*one.engine, shape.parameters, 0);
    }
    end(one);
    return 0;
  }
  Member one = start(0, port, shape);
  for (int i = 0; i < kWarmUp; ++i) {
    step(*one.engine, shape.parameters, 0);
  }
  ::kill(peer, SIGSTOP);
  int status = 0;
  ::waitpid(peer, &status, WUNTRACED);
  const std::vector<double> took = step(*one.engine, shape.parameters, peer);
  std::printf(
      "{\"ready_calls\":%zu,\"peer\":\"stopped\",\"parameter_bytes\":%lld,\"ready_p50_us\":%.3f,"
      "\"ready_p99_us\":%.3f,\"ready_max_us\":%.3f}\n",
      took.size(),
      static_cast<long long>(shape.elements * 4),
      quantile(took, 0.5),
      quantile(took, 0.99),
      quantile(took, 1));
  end(one);
  ::waitpid(peer, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace stretto

int main(int argc, char** argv) {
  stretto::Model shape;
  if (argc > 1) {
    shape.parameters = std::strtoul(argv[1], nullptr, 10);
  }
  if (argc > 2) {
    shape.elements = std::strtol(argv[2], nullptr, 10) * 256;
  }
  if (shape.parameters == 0 || shape.elements <= 0) {
    std::fprintf(stderr, "usage: ready_latency [PARAMETERS] [KIB_EACH]\n");
    return 2;
  }
  return stretto::run(shape);
}

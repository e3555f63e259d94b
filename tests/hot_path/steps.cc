// SPDX-License-Identifier: Apache-2.0
// Steps of two ranks for system_calls.py, which watches them with strace.  Two calls of access(2)
// on names that do not exist mark where the window begins and ends.
//
//   hot_path_steps               prints the ways
//   hot_path_steps WAY [STEPS]   prints how many chunks a rank had
#include "two_ranks.hpp"

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>

#include <unistd.h>

int main(int argc, char** argv) {
  using namespace stretto::testing;
  const std::vector<Way> all_ways = ways();
  if (argc < 2) {
    for (const Way& way : all_ways) {
      std::printf("%s\n", way.name.c_str());
    }
    return 0;
  }
  const auto way = std::find_if(
      all_ways.begin(), all_ways.end(), [&](const Way& one) { return one.name == argv[1]; });
  if (way == all_ways.end()) {
    std::fprintf(stderr, "there is no way '%s'\n", argv[1]);
    return 2;
  }
  const std::size_t steps = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 6;
  std::barrier all(2);
  std::size_t chunks = 0;
  const auto mark = [&](std::size_t rank, const char* name) {
    all.arrive_and_wait();
    if (rank == 0) {
      static_cast<void>(!::access(name, F_OK));
    }
    all.arrive_and_wait();
  };
  run_two(*way, [&](std::size_t rank, stretto::Engine& engine) {
    for (int i = 0; i < 6; ++i) {
      step(engine);
    }
    mark(rank, "/stretto-window-begins");
    for (std::size_t i = 0; i < steps; ++i) {
      const std::size_t count = step(engine).chunks;
      chunks += rank == 0 ? count : 0;
    }
    mark(rank, "/stretto-window-ends");
  });
  std::printf("%zu\n", chunks);
  return 0;
}

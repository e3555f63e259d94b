// SPDX-License-Identifier: Apache-2.0
// Steps of two ranks over tcp for system_calls.py, which watches them with strace.  Two calls of
// access(2) on names that do not exist mark where the window begins and ends.
#include "two_ranks.hpp"

#include <barrier>
#include <cstdio>
#include <cstdlib>

#include <unistd.h>

int main(int argc, char** argv) {
  using namespace stretto::testing;
  const std::size_t steps = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 6;
  std::barrier all(2);
  std::size_t chunks = 0;
  const auto mark = [&](std::size_t rank, const char* name) {
    all.arrive_and_wait();
    if (rank == 0) {
      static_cast<void>(!::access(name, F_OK));
    }
    all.arrive_and_wait();
  };
  run_two("tcp", [&](std::size_t rank, stretto::Engine& engine) {
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

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/engine.hpp"
#include "stretto/group.hpp"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace stretto::testing {

/// Runs `body` once per rank, each on a thread of its own, and waits for all.
inline void run_ranks(std::size_t ranks, const std::function<void(std::shared_ptr<Group>)>& body) {
  auto groups = Group::in_process(ranks);
  std::vector<std::thread> threads;
  threads.reserve(ranks);
  for (auto& group : groups) {
    threads.emplace_back([&body, group] { body(group); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace stretto::testing

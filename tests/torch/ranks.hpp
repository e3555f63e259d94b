// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/libtorch.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace stretto::libtorch {

using GroupPointer = std::shared_ptr<Group>;

/// Runs `body` as so many ranks, which are threads of this process; what each threw, or "".
inline std::vector<std::string> run_ranks(std::size_t count,
                                          const std::function<void(const GroupPointer&)>& body) {
  at::set_num_threads(1);
  const auto groups = Group::in_process(count);
  std::vector<std::string> errors(count);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(groups[rank]);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  return errors;
}

/// The same, where no rank may throw.
inline void expect_ranks(std::size_t count, const std::function<void(const GroupPointer&)>& body) {
  const auto errors = run_ranks(count, body);
  for (std::size_t rank = 0; rank < count; ++rank) {
    EXPECT_EQ(errors[rank], "") << "rank " << rank;
  }
}

inline std::size_t rank_of(const GroupPointer& group) {
  return index_of(group->rank());
}

}  // namespace stretto::libtorch

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/ucx/factory.hpp"

#include "stretto/group.hpp"

#include <cstddef>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace stretto::transport {

/// Ranks that are threads of this process, each with a worker of its own, or the first error.
inline Result<std::vector<std::unique_ptr<spi::Transport>>> connected_by_ucx(
    std::size_t size, const UcxOptions& options) {
  const auto groups = Group::in_process(size);
  std::vector<Result<std::unique_ptr<spi::Transport>>> results(size);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      spi::ControlPlane& control = groups[rank]->control();
      results[rank] = make_ucx_transport(control, options);
      if (!results[rank]) {
        control.abort(results[rank].error());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::vector<std::unique_ptr<spi::Transport>> transports;
  for (auto& result : results) {
    STRETTO_TRY(result);
    transports.push_back(std::move(*result));
  }
  return transports;
}

}  // namespace stretto::transport

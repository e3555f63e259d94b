// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/tcp/factory.hpp"

#include "stretto/group.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace stretto::transport {

/// Options under which a test fails soon and not never.
inline TcpOptions quick_options() {
  TcpOptions options;
  options.token = "blue";
  options.job_id = 42;
  options.timeout = std::chrono::seconds(20);
  return options;
}

using TransportResult = Result<std::unique_ptr<spi::Transport>>;

/// Connects ranks that are threads of this process; `options_of(rank)` may differ.  A rank that
/// fails tells the others, as an engine would.
inline std::vector<TransportResult> connect_ranks(
    std::size_t size, const std::function<TcpOptions(std::size_t)>& options_of) {
  const auto groups = Group::in_process(size);
  std::vector<TransportResult> results(size);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      spi::ControlPlane& control = groups[rank]->control();
      results[rank] = make_tcp_transport(control, options_of(rank));
      if (!results[rank]) {
        control.abort(results[rank].error());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return results;
}

/// The transports, or the first error.
inline Result<std::vector<std::unique_ptr<spi::Transport>>> connected(std::size_t size,
                                                                      const TcpOptions& options) {
  auto results = connect_ranks(size, [&](std::size_t) { return options; });
  std::vector<std::unique_ptr<spi::Transport>> transports;
  for (auto& result : results) {
    STRETTO_TRY(result);
    transports.push_back(std::move(*result));
  }
  return transports;
}

}  // namespace stretto::transport

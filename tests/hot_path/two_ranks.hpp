// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/socket.hpp"

#include "stretto/engine.hpp"
#include "stretto/group.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace stretto::testing {

// 64 chunks a step: the tables of messages that are under way never grow (256 a peer from the
// start).
inline constexpr std::size_t kParameters = 16;
inline constexpr std::int64_t kElements = 16'384;  // 64 KiB each: four chunks of 16 KiB

/// How gradients move.
struct Way {
  std::string name;
  ExchangeKind exchange = ExchangeKind::kOwner;
  std::string transport = "tcp";
  std::size_t threads = 0;                ///< that copy and add
  std::string begins = "owner over tcp";  ///< how the engine describes it
};

inline std::vector<Way> ways() {
  return {{.name = "owner"},
          {.name = "owner_threads", .threads = 2},
          {.name = "one_hop", .exchange = ExchangeKind::kOneHop, .begins = "one-hop over tcp"},
          {.name = "shared",  // the default on one host
           .exchange = ExchangeKind::kAuto,
           .transport = "auto",
           .begins = "shared"},
          {.name = "shared_threads",
           .exchange = ExchangeKind::kAuto,
           .transport = "auto",
           .threads = 2,
           .begins = "shared"}};
}

template <typename T>
T must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().to_string().c_str());
    std::abort();
  }
  return std::move(*result);
}
inline void must(const Status& status) {
  if (!status.is_ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    std::abort();
  }
}

/// Ranks that join over real control connections, as processes do, but live in one process, so that
/// everything can be counted in one place.
inline std::shared_ptr<Group> join(std::size_t rank, std::size_t size, std::uint16_t port) {
  GroupOptions options;
  options.rank = rank;
  options.size = size;
  options.local_rank = rank;
  options.local_size = size;
  options.master_port = port;
  options.token = "hot path";
  return must(Group::join(options));
}

inline std::unique_ptr<Engine> make_engine(const std::shared_ptr<Group>& group, const Way& way) {
  EngineOptions options;
  options.exchange = way.exchange;
  options.transport = way.transport;
  options.reduction_threads = way.threads;
  options.chunk_bytes = std::size_t{16} << 10;
  options.one_hop_bytes = 1024;  // the footer goes in one hop, all else by its owner
  auto engine = must(Engine::create(group, options));
  for (std::size_t p = 0; p < kParameters; ++p) {
    must(engine->add_parameter({"layer" + std::to_string(p), {kElements}}));
  }
  must(engine->commit());
  if (!engine->describe().starts_with(way.begins)) {
    must(Status(StatusCode::kInternal, "gradients go by " + engine->describe()));
  }
  return engine;
}

/// Output layer first, as backward does; every other gradient lies in the user's memory.
inline StepReport step(Engine& engine) {
  static const std::vector<float> users(kElements, 1.0F);
  must(engine.begin_step({}));
  for (std::size_t p = kParameters; p-- > 0;) {
    const bool in_place = p % 2 == 0;
    must(engine.ready(ParameterId{static_cast<std::uint32_t>(p)},
                      in_place ? nullptr : reinterpret_cast<const std::byte*>(users.data())));
  }
  return must(engine.finish_step());
}

/// Runs `body` once per rank on a thread of its own.
inline void run_two(const Way& way, const std::function<void(std::size_t, Engine&)>& body) {
  constexpr std::size_t kRanks = 2;
  const std::uint16_t port = must(rendezvous::find_free_port());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = join(rank, kRanks, port);
      auto engine = make_engine(group, way);
      body(rank, *engine);
      must(engine->shutdown());
      engine.reset();
      group->leave();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace stretto::testing

// SPDX-License-Identifier: Apache-2.0
// All-to-all bulk over transport tcp: bytes a second per rank and direction, processor seconds a
// GB.
//
//   transport_bench [ranks] [MiB to each peer and round] [rounds]     ranks are threads, loopback
//   RANK=r WORLD_SIZE=n MASTER_ADDR=... transport_bench 0 [MiB] [rounds]    one process per rank
#include "transport/tcp/factory.hpp"

#include "stretto/group.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>
#include <sys/resource.h>

namespace stretto {
namespace {

using spi::TransportEvent;

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// One rank's end of the traffic.
class Endpoint {
 public:
  Endpoint(spi::Transport& transport, std::size_t bytes)
      : transport_(transport),
        payload_(bytes),
        buffers_(transport.size(), std::vector<std::byte>(bytes)) {}

  /// Sends to every peer and receives from every peer, once.
  void round() {
    const std::size_t size = transport_.size();
    const std::size_t rank = index_of(transport_.rank());
    spi::MessageHeader header;
    header.payload_bytes = payload_.size();
    for (std::size_t step = 1; step < size; ++step) {
      const Rank peer{static_cast<std::uint32_t>((rank + step) % size)};
      check(transport_.announce(peer, header, payload_, 0));
    }
    // Goes below zero when a peer that is a round ahead has been served already.
    left_ += 2 * (static_cast<std::ptrdiff_t>(size) - 1);
    while (left_ > 0) {
      const std::size_t count = transport_.poll(events_).value();
      for (std::size_t i = 0; i < count; ++i) {
        left_ -= handle(events_[i]);
      }
      polls_ += 1;
      if (count == 0 && transport_.next_due() > Clock::now()) {
        pollfd descriptor{transport_.descriptor(), POLLIN, 0};
        static_cast<void>(::poll(&descriptor, 1, 1000));
      }
    }
  }
  std::size_t polls() const { return polls_; }

 private:
  static void check(const Status& status) {
    if (!status.is_ok()) {
      std::fprintf(stderr, "%s\n", status.to_string().c_str());
      std::exit(1);
    }
  }

  std::ptrdiff_t handle(const TransportEvent& event) {
    switch (event.kind) {
      case TransportEvent::Kind::kAnnounced:
        // A peer may be a round ahead; its buffer is free then, for what it sent before is here.
        check(transport_.accept(event.peer, event.message, buffers_[index_of(event.peer)]));
        return 0;
      case TransportEvent::Kind::kPeerLost:
        check({StatusCode::kPeerLost, "rank " + std::to_string(index_of(event.peer))});
        return 0;
      default:
        return 1;
    }
  }

  spi::Transport& transport_;
  std::vector<std::byte> payload_;
  std::vector<std::vector<std::byte>> buffers_;
  std::array<TransportEvent, 64> events_;
  std::ptrdiff_t left_ = 0;
  std::size_t polls_ = 0;
};

void run_rank(Group& group, std::size_t bytes, std::size_t rounds) {
  transport::TcpOptions options;
  options.interface = group.options().interface;
  options.route_to = group.is_in_process() ? "" : group.options().master_address;
  const auto transport = transport::make_tcp_transport(group.control(), options);
  if (!transport) {
    std::fprintf(stderr, "%s\n", transport.error().to_string().c_str());
    std::exit(1);
  }
  Endpoint endpoint(**transport, bytes);
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  endpoint.round();  // congestion windows open, memory is touched
  static_cast<void>(group.control().all_gather("warm", {}, deadline).value());
  const double cpu = cpu_seconds();
  const TimePoint start = Clock::now();
  for (std::size_t round = 0; round < rounds; ++round) {
    endpoint.round();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  static_cast<void>(group.control().all_gather("done", {}, deadline).value());
  const double used = cpu_seconds() - cpu;
  const std::size_t processes_ranks = group.is_in_process() ? group.size() : 1;
  const double gigabytes =
      1e-9 * static_cast<double>(bytes) * static_cast<double>((group.size() - 1) * rounds);
  std::printf("rank %zu: %.3f GB/s each way, %.3f s, %.3f cpu-s/GB sent and received, %zu polls\n",
              index_of(group.rank()),
              gigabytes / seconds,
              seconds,
              used / (gigabytes * static_cast<double>(processes_ranks)),
              endpoint.polls());
}

int main_of(int argc, char** argv) {
  const auto argument = [&](int i, std::size_t fallback) {
    return argc > i ? std::strtoull(argv[i], nullptr, 10) : fallback;
  };
  const std::size_t ranks = argument(1, 4);
  const std::size_t bytes = argument(2, 4) << 20;
  const std::size_t rounds = argument(3, 50);
  std::vector<std::shared_ptr<Group>> groups;
  if (ranks > 0) {
    groups = Group::in_process(ranks);
  } else {
    const auto options = GroupOptions::from_environment();
    Result<std::shared_ptr<Group>> group = fail(StatusCode::kInternal, "");
    if (options) {
      group = Group::join(*options);
    } else {
      group = fail(options.error());
    }
    if (!group) {
      std::fprintf(stderr, "%s\n", group.error().to_string().c_str());
      return 3;
    }
    groups.push_back(std::move(*group));
  }
  std::vector<std::thread> threads;
  for (const auto& group : groups) {
    threads.emplace_back([&] { run_rank(*group, bytes, rounds); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return 0;
}

}  // namespace
}  // namespace stretto

int main(int argc, char** argv) {
  return stretto::main_of(argc, argv);
}

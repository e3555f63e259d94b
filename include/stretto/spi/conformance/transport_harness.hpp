// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the cases of transport_conformance.hpp stand on: how a back end makes its transports, and
// how all ranks of a test are polled from one thread.

#include "stretto/spi/conformance/transport_endpoint.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>

namespace stretto::spi::conformance {

/// How long a test waits before it says that nothing moves; sanitizers on a busy host are slow.
inline constexpr std::chrono::seconds kPatience{120};

/// What a back end tells the suite.
struct TransportHarness {
  std::string name;
  /// Makes transports of ranks 0..size-1, connected, all in this process.
  std::function<Result<std::vector<std::unique_ptr<Transport>>>(std::size_t size)> make;
  /// Sizes around it are tried: the unit in which payloads move.
  std::size_t fragment_bytes = std::size_t{64} << 10;
};

inline std::ostream& operator<<(std::ostream& out, const TransportHarness& harness) {
  return out << harness.name;
}
inline std::string harness_name(const testing::TestParamInfo<TransportHarness>& info) {
  return info.param.name;
}

/// Sleeps as the contract allows: until a descriptor is readable or something is due.
/// Says whether it woke before `deadline`.
inline bool sleep_for_work(std::span<const std::unique_ptr<Endpoint>> endpoints,
                           Deadline deadline) {
  std::vector<pollfd> descriptors;
  TimePoint due = deadline.when();
  for (const auto& endpoint : endpoints) {
    if (!endpoint->alive()) {
      continue;
    }
    const int descriptor = endpoint->transport().descriptor();
    if (descriptor >= 0) {
      descriptors.push_back({descriptor, POLLIN, 0});
    } else {
      due = std::min(due, Clock::now() + std::chrono::microseconds(100));
    }
    due = std::min(due, endpoint->transport().next_due());
  }
  const TimePoint now = Clock::now();
  const auto wait = std::max(due, now) - now;
  timespec timeout{};
  timeout.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(wait).count();
  timeout.tv_nsec =
      (std::chrono::duration_cast<std::chrono::nanoseconds>(wait) % 1'000'000'000).count();
  static_cast<void>(::ppoll(descriptors.data(), descriptors.size(), &timeout, nullptr));
  return !deadline.passed();
}

class TransportConformance : public testing::TestWithParam<TransportHarness> {
 protected:
  void start(std::size_t size, std::uint64_t seed = 1) {
    endpoints_.clear();
    auto made = GetParam().make(size);
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    ASSERT_EQ(made->size(), size);
    for (auto& transport : *made) {
      endpoints_.push_back(std::make_unique<Endpoint>(std::move(transport), ++seed));
    }
  }
  Endpoint& at(std::size_t rank) { return *endpoints_[rank]; }
  Transport& transport(std::size_t rank) { return at(rank).transport(); }

  /// Polls everyone in turn, sleeping while nothing happens, until `done`; fails after kPatience.
  template <typename Done>
  void run_until(Done done, bool accepting = true) {
    const auto deadline = Deadline::after(kPatience);
    while (!HasFatalFailure() && !done()) {
      std::size_t events = 0;
      for (auto& endpoint : endpoints_) {
        if (endpoint->alive()) {
          events += endpoint->turn();
          if (accepting) {
            endpoint->accept_all();
          }
        }
      }
      ASSERT_TRUE(no_complaints());
      if (events == 0) {
        ASSERT_TRUE(sleep_for_work(endpoints_, deadline)) << "nothing moves any more";
      }
    }
  }
  /// Lets everything happen that can: until 10 ms passed without an event.
  void settle(bool accepting = false) {
    const auto quiet = std::chrono::milliseconds(10);
    for (auto until = Clock::now() + quiet; Clock::now() < until;) {
      for (auto& endpoint : endpoints_) {
        if (endpoint->alive() && endpoint->turn() > 0) {
          until = Clock::now() + quiet;
        }
        if (accepting && endpoint->alive()) {
          endpoint->accept_all();
        }
      }
      sleep_for_work(endpoints_, Deadline(std::min(until, Clock::now() + quiet / 10)));
    }
    EXPECT_TRUE(no_complaints());
  }
  bool all_sent() const {
    return std::ranges::all_of(endpoints_, [](const auto& e) { return e->unsent() == 0; });
  }
  std::size_t all_received() const {
    std::size_t count = 0;
    for (const auto& endpoint : endpoints_) {
      count += endpoint->received();
    }
    return count;
  }
  testing::AssertionResult no_complaints() const {
    for (const auto& endpoint : endpoints_) {
      if (!endpoint->complaint().empty()) {
        return testing::AssertionFailure() << endpoint->complaint();
      }
    }
    return testing::AssertionSuccess();
  }
  /// Rank 1 has one message of `bytes` bytes of rank 0 announced to it, at announced()[0].
  void announce_one(std::size_t bytes) {
    at(0).send(rank_at(1), bytes);
    run_until([&] { return !at(1).announced().empty(); }, false);
  }
  std::vector<std::size_t> sizes() const {
    const std::size_t fragment = GetParam().fragment_bytes;
    return {0, 1, 3, fragment - 1, fragment, fragment + 1, 4093, (std::size_t{4} << 20) + 5};
  }

  std::vector<std::unique_ptr<Endpoint>> endpoints_;
};

}  // namespace stretto::spi::conformance

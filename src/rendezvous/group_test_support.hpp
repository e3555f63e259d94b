// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/connection.hpp"
#include "rendezvous/frame.hpp"
#include "rendezvous/join.hpp"

#include "stretto/group.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace stretto::rendezvous {

inline std::span<const std::byte> as_blob(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline std::string as_text(const spi::Bytes& blob) {
  return {reinterpret_cast<const char*>(blob.data()), blob.size()};
}

/// Runs one function per rank, each on a thread of its own, and joins them.
inline void on_every_rank(std::size_t size, const std::function<void(std::size_t)>& function) {
  std::vector<std::thread> threads;
  threads.reserve(size);
  for (std::size_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&function, rank] { function(rank); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Whether a descriptor turns readable before the deadline.
bool readable(int descriptor, Deadline deadline);

/// Waits until the plane is not healthy, and says why.
Status wait_bad(spi::ControlPlane& plane);

/// Options of a rank on the loopback interface, with a token.
GroupOptions make_options(std::size_t rank, std::size_t size, std::uint16_t port);

/// A group over real sockets, its ranks threads of this process.
std::vector<std::shared_ptr<StarGroup>> join_all(
    std::size_t size, std::chrono::milliseconds dead_after = std::chrono::seconds(30));

/// A connection to a port of the loopback interface, tried until something listens there.
FileDescriptor connect_when_open(std::uint16_t port);

/// A rank made by hand that greets rank 0 as it is told to, and then does nothing by itself.
struct HandMadeRank {
  std::unique_ptr<Connection> connection;
  Frame answer;
};

HandMadeRank greet_by_hand(const GroupOptions& options, std::uint32_t version = kWireVersion);

}  // namespace stretto::rendezvous

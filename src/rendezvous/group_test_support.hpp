// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/group.hpp"

#include <functional>
#include <string>
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

/// Whether a descriptor turns readable before the deadline.
bool readable(int descriptor, Deadline deadline);

}  // namespace stretto::rendezvous

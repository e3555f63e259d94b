// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exchange/shared/mapping.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>

namespace stretto::exchange {

/// What one rank tells another about one shard; lies in memory that both map.
struct alignas(64) Letter {
  enum class Kind : std::uint32_t {
    kPart = 1,    ///< the sender's contribution is in place, and so is room for the result
    kResult = 2,  ///< the result lies where the receiver said
  };
  std::uint64_t step = 0;
  std::uint64_t samples = 0;
  std::uint64_t contribution_offset = 0;
  std::uint64_t result_offset = 0;
  std::uint32_t contribution_file = 0;
  std::uint32_t result_file = 0;
  std::uint32_t shard = 0;
  Kind kind = Kind::kPart;
  std::uint32_t last = 0;  ///< of a result: 1 + the rank whose part came last
  std::uint32_t unused = 0;
};
static_assert(sizeof(Letter) == 64);

/// The letters of one rank to all others: one ring per receiver, which the rank alone writes.
///
/// A ring never runs over: a rank has at most two letters per shard on its way to one receiver, of
/// this step and the next (exchange/shared/shared.hpp says why).
///
/// Threading: confined(the writer) for put; confined(the receiver) for its own ring.
class PostBox {
 public:
  static std::size_t bytes_for(std::size_t ranks, std::size_t shards) noexcept {
    return ranks * (sizeof(Head) + capacity_for(shards) * sizeof(Letter));
  }

  PostBox() noexcept = default;
  PostBox(Mapping memory, std::size_t shards) noexcept
      : memory_(std::move(memory)), capacity_(capacity_for(shards)) {}

  void put(std::size_t receiver, const Letter& letter) noexcept {
    Head& head = head_of(receiver);
    const std::uint64_t at = head.written.load(std::memory_order_relaxed);
    letters_of(receiver)[at & (capacity_ - 1)] = letter;
    // Pairs with the load in written(): who sees the count sees the letter, and what it speaks of.
    head.written.store(at + 1, std::memory_order_release);
  }
  /// How many letters the rank has written to this receiver.
  std::uint64_t written(std::size_t receiver) const noexcept {
    return head_of(receiver).written.load(std::memory_order_acquire);
  }
  const Letter& letter(std::size_t receiver, std::uint64_t number) const noexcept {
    return letters_of(receiver)[number & (capacity_ - 1)];
  }
  std::size_t capacity() const noexcept { return capacity_; }
  const Mapping& memory() const noexcept { return memory_; }

 private:
  struct alignas(64) Head {
    std::atomic<std::uint64_t> written{0};
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  static std::size_t capacity_for(std::size_t shards) noexcept {
    return std::bit_ceil(std::max<std::size_t>(2 * shards, 2));
  }
  std::byte* ring_of(std::size_t receiver) const noexcept {
    return memory_.data() + receiver * (sizeof(Head) + capacity_ * sizeof(Letter));
  }
  Head& head_of(std::size_t receiver) const noexcept {
    return *std::launder(reinterpret_cast<Head*>(ring_of(receiver)));
  }
  Letter* letters_of(std::size_t receiver) const noexcept {
    return reinterpret_cast<Letter*>(ring_of(receiver) + sizeof(Head));
  }

  Mapping memory_;
  std::size_t capacity_ = 2;
};

}  // namespace stretto::exchange

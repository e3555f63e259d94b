// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/device.hpp"
#include "stretto/spi/exchange.hpp"
#include "stretto/spi/transport.hpp"
#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::spi::conformance {

/// One rank's exchange with what it stands on; the transport ends first.
struct ExchangeEnd {
  std::shared_ptr<void> group;  ///< whatever else has to live as long
  std::unique_ptr<Device> device;
  std::unique_ptr<Exchange> exchange;
  std::unique_ptr<Transport> transport;  ///< may be null
};

/// Calls a function for each rank, each on a thread of its own, and joins them.
inline void for_every_rank(std::size_t size, const std::function<void(std::size_t)>& function) {
  std::vector<std::thread> threads;
  threads.reserve(size);
  for (std::size_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&function, rank] { function(rank); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

/// Rounds to nearest even; right for zeros and for what is normal in the type.
inline std::uint16_t round_to_bits(DType dtype, float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7FFFFFFFU) == 0) {
    return static_cast<std::uint16_t>(bits >> 16U);
  }
  const unsigned dropped = dtype == DType::kBFloat16 ? 16 : 13;
  const std::uint32_t sign = bits >> 16U & 0x8000U;
  std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  magnitude += (1U << (dropped - 1)) - 1 + (magnitude >> dropped & 1U);
  magnitude >>= dropped;
  if (dtype == DType::kFloat16) {
    magnitude -= (127U - 15U) << 10U;
  }
  return static_cast<std::uint16_t>(sign | magnitude);
}

inline void store_value(DType dtype, std::byte* base, std::size_t i, float value) {
  if (dtype == DType::kFloat32) {
    std::memcpy(base + 4 * i, &value, sizeof value);
  } else {
    const std::uint16_t bits = round_to_bits(dtype, value);
    std::memcpy(base + 2 * i, &bits, sizeof bits);
  }
}

/// All ranks of one exchange in one process, and a driver that plays their steps in a random order.
///
/// Contributions are small whole numbers, so that sums are exact.  Whatever an exchange may no
/// longer read is overwritten at once, so that a late reader shows in the result.
class ExchangeWorld {
 public:
  /// How memory for contributions and results is made.
  enum class Memory { kArena, kPlain };
  /// Samples of a rank in a step.
  using Samples = std::function<std::uint64_t(std::size_t rank, std::uint64_t step)>;

  /// One rank: its memory and how far it is in its step.
  struct Player {
    std::unique_ptr<Buffer> contribution_arena;
    std::unique_ptr<Buffer> result_arena;
    std::vector<std::byte> contribution_plain;
    std::vector<std::byte> result_plain;
    std::byte* contributions = nullptr;
    std::byte* results = nullptr;
    std::uint64_t step = 0;
    std::vector<ChunkSubmission> left;  ///< to submit in this step
    std::vector<int> home;              ///< by shard: kResult events in this step
    std::vector<int> released;
    std::size_t events = 0;
    bool open = false;
  };

  ExchangeWorld(std::vector<ExchangeEnd> ends, unsigned seed)
      : ranks_(ends.size()), ends_(std::move(ends)), random_(seed) {}

  std::size_t size() const noexcept { return ends_.size(); }
  Exchange& exchange(std::size_t rank) { return *ends_[rank].exchange; }
  Player& rank(std::size_t rank) { return ranks_[rank]; }
  std::mt19937& random() noexcept { return random_; }
  const std::vector<ChunkDescription>& chunks() const noexcept { return chunks_; }
  Samples samples = [](std::size_t, std::uint64_t) { return std::uint64_t{1}; };

  /// Allocates memory and takes the plan, on all ranks together.
  void configure(std::vector<ChunkDescription> chunks, std::uint64_t hash, Memory memory) {
    chunks_ = std::move(chunks);
    offsets_.clear();
    std::size_t bytes = 0;
    for (const ChunkDescription& chunk : chunks_) {
      offsets_.push_back(bytes);
      bytes += (chunk.element_count * size_of(chunk.dtype) + 63) / 64 * 64;
    }
    for (std::size_t r = 0; r < size(); ++r) {
      make_memory(r, bytes, memory);
    }
    std::vector<Status> configured(size());
    for_every_rank(size(),
                   [&](std::size_t r) { configured[r] = exchange(r).configure(chunks_, hash, 1); });
    for (const Status& status : configured) {
      ASSERT_TRUE(status.is_ok()) << status.to_string();
    }
    first_shard_.assign(1, 0);
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      first_shard_.push_back(first_shard_.back() + exchange(0).shards_of(id_of(c)));
    }
  }

  static ChunkId id_of(std::size_t chunk) { return ChunkId{static_cast<std::uint32_t>(chunk)}; }
  std::size_t shard_count() const noexcept { return first_shard_.back(); }

  /// A whole number that depends on everything.
  static float value_of(std::size_t rank, std::size_t chunk, std::uint64_t step, std::size_t i) {
    return static_cast<float>(static_cast<int>((rank * 5 + chunk * 3 + step * 7 + i) % 29) - 14);
  }

  void open_step(std::size_t r) {
    Player& rank = ranks_[r];
    ++rank.step;
    rank.open = true;
    rank.events = 0;
    rank.home.assign(shard_count(), 0);
    rank.released.assign(shard_count(), 0);
    rank.left.clear();
    const std::uint64_t n = samples(r, rank.step);
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      const ChunkDescription& chunk = chunks_[c];
      for (std::size_t i = 0; i < chunk.element_count; ++i) {
        // Without samples a contribution means nothing, whatever it holds.
        store_value(chunk.dtype,
                    rank.contributions + offsets_[c],
                    i,
                    n == 0 ? 3e3F : value_of(r, c, rank.step, i));
      }
      poison(rank.results + offsets_[c], chunk.element_count * size_of(chunk.dtype));
      add_submissions(r, c, n);
    }
  }

  /// Submits the next piece of an open step; false if there was none or no room.
  bool submit_one(std::size_t r) {
    Player& rank = ranks_[r];
    if (rank.left.empty()) {
      return false;
    }
    const Status status = exchange(r).submit(rank.left.back());
    if (status.code() == StatusCode::kWouldBlock) {
      return false;
    }
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    rank.left.pop_back();
    return true;
  }

  /// Polls once; returns how many events came.
  std::size_t poll(std::size_t r) {
    std::array<ExchangeEvent, 5> events;
    auto count = exchange(r).poll(events);
    EXPECT_TRUE(count.has_value()) << count.error().to_string();
    const std::size_t came = count ? *count : 0;
    for (std::size_t i = 0; i < came; ++i) {
      take(r, events[i]);
    }
    return came;
  }

  bool step_done(std::size_t r) const {
    const Player& rank = ranks_[r];
    return rank.left.empty() && rank.events == 2 * shard_count();
  }

  /// Checks every element and event of the step that the rank is in, and ends it.
  void close_step(std::size_t r) {
    Player& rank = ranks_[r];
    for (std::size_t shard = 0; shard < shard_count(); ++shard) {
      ASSERT_EQ(rank.home[shard], 1) << "shard " << shard;
      ASSERT_EQ(rank.released[shard], 1) << "shard " << shard;
    }
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      check_chunk(r, c);
    }
    rank.open = false;
  }

  /// Plays steps on all ranks in a random order until each has done `steps` more.
  void play(std::uint64_t steps) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    std::vector<std::uint64_t> until;
    for (const Player& rank : ranks_) {
      until.push_back(rank.step + steps);
    }
    std::size_t running = size();
    std::vector<bool> ended(size(), false);
    while (running > 0 && !deadline.passed() && !testing::Test::HasFatalFailure()) {
      const std::size_t r = random_() % size();
      if (!ranks_[r].open && !ended[r]) {
        open_step(r);
      }
      for (std::size_t burst = random_() % 4; burst > 0 && submit_one(r);) {
        --burst;
      }
      poll(r);
      if (ranks_[r].open && step_done(r)) {
        close_step(r);
        if (ranks_[r].step == until[r]) {
          ended[r] = true;
          --running;
        }
      }
    }
    ASSERT_EQ(running, 0U) << "ranks that did not end their steps";
  }

  static void poison(std::byte* memory, std::size_t bytes) {
    if (bytes > 0) {
      std::memset(memory, 0x5A, bytes);  // a large number in every type
    }
  }

 private:
  void make_memory(std::size_t r, std::size_t bytes, Memory memory) {
    Player& rank = ranks_[r];
    if (memory == Memory::kPlain) {
      rank.contribution_plain.assign(bytes, std::byte{0});
      rank.result_plain.assign(bytes, std::byte{0});
      rank.contributions = rank.contribution_plain.data();
      rank.results = rank.result_plain.data();
      return;
    }
    auto contributions = exchange(r).allocate_arena(*ends_[r].device, bytes);
    auto results = exchange(r).allocate_arena(*ends_[r].device, bytes);
    ASSERT_TRUE(contributions.has_value()) << contributions.error().to_string();
    ASSERT_TRUE(results.has_value()) << results.error().to_string();
    rank.contribution_arena = std::move(*contributions);
    rank.result_arena = std::move(*results);
    rank.contributions = rank.contribution_arena->data();
    rank.results = rank.result_arena->data();
  }

  void add_submissions(std::size_t r, std::size_t c, std::uint64_t n) {
    Player& rank = ranks_[r];
    ChunkSubmission whole;
    whole.step = rank.step;
    whole.chunk = id_of(c);
    whole.contribution = n == 0 ? nullptr : rank.contributions + offsets_[c];
    whole.result = rank.results + offsets_[c];
    whole.samples = n;
    whole.priority = static_cast<std::uint32_t>(c);
    const std::size_t shards = exchange(r).shards_of(whole.chunk);
    const ExchangeTraits& traits = exchange(r).traits();
    if (traits.partial_chunks && random_() % 2 == 0) {
      for (std::size_t s = 0; s < shards;) {
        ChunkSubmission some = whole;
        some.first_shard = s;
        some.shard_count = 1 + random_() % (shards - s);
        s += some.shard_count;
        rank.left.push_back(some);
      }
    } else if (shards > 0) {
      rank.left.push_back(whole);
    }
    if (traits.any_order) {
      std::shuffle(rank.left.begin(), rank.left.end(), random_);
    }
  }

  void take(std::size_t r, const ExchangeEvent& event) {
    Player& rank = ranks_[r];
    ASSERT_EQ(event.step, rank.step);
    const std::size_t c = index_of(event.chunk);
    ASSERT_LT(c, chunks_.size());
    for (std::size_t s = event.first_shard; s < event.first_shard + event.shard_count; ++s) {
      const std::size_t shard = first_shard_[c] + s;
      ASSERT_LT(shard, first_shard_[c + 1]);
      ++rank.events;
      if (event.kind == ExchangeEvent::Kind::kResult) {
        ++rank.home[shard];
        std::uint64_t total = 0;
        for (std::size_t other = 0; other < size(); ++other) {
          total += samples(other, event.step);
        }
        EXPECT_EQ(event.samples, total);
        continue;
      }
      ++rank.released[shard];
      const auto range = exchange(r).shard_range(event.chunk, s);
      const std::size_t width = size_of(chunks_[c].dtype);
      poison(rank.contributions + offsets_[c] + range.first * width, range.count * width);
    }
  }

  void check_chunk(std::size_t r, std::size_t c) const {
    const ChunkDescription& chunk = chunks_[c];
    const std::uint64_t step = ranks_[r].step;
    std::uint64_t total = 0;
    std::vector<float> weight;
    for (std::size_t other = 0; other < size(); ++other) {
      total += samples(other, step);
      weight.push_back(static_cast<float>(samples(other, step)));
    }
    const std::byte* result = ranks_[r].results + offsets_[c];
    const std::size_t width = size_of(chunk.dtype);
    for (std::size_t i = 0; i < chunk.element_count; ++i) {
      float sum = 0;
      for (std::size_t other = 0; other < size(); ++other) {
        sum += weight[other] * value_of(other, c, step, i);
      }
      std::array<std::byte, 4> expected{};
      const bool is_mean = chunk.combine == Combine::kMean && total > 0;
      const float scale = is_mean ? static_cast<float>(1.0 / static_cast<double>(total)) : 1.0F;
      store_value(chunk.dtype, expected.data(), 0, sum * scale);
      ASSERT_EQ(std::memcmp(result + i * width, expected.data(), width), 0)
          << "rank " << r << ", step " << step << ", chunk " << c << " of " << chunk.element_count
          << " " << to_string(chunk.dtype) << ", element " << i;
    }
  }

  std::vector<Player> ranks_;
  std::vector<ExchangeEnd> ends_;  // end before the memory
  std::mt19937 random_;
  std::vector<ChunkDescription> chunks_;
  std::vector<std::size_t> offsets_;      ///< bytes, by chunk
  std::vector<std::size_t> first_shard_;  ///< by chunk, and one past the end
};

}  // namespace stretto::spi::conformance

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exchange/chunk_table.hpp"
#include "exchange/coding.hpp"
#include "exchange/stream_work.hpp"

#include "stretto/spi/device.hpp"
#include "stretto/spi/exchange.hpp"
#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace stretto::exchange {

/// Encodes, reduces and decodes coded shards on streams of its own, and holds their wires.
///
/// Shards are known by slot, as the exchange numbers them: 2 * shard + parity of the step.  A slot
/// has at most one piece of work under way.
///
/// Threading: confined(progress); the arithmetic runs on the streams' threads.
/// Ownership: the device outlives it.  Wires stay where they are until the next `configure`.
/// Cost:      no allocation after `configure`.
class ShardCoder {
 public:
  /// `streams` run beside one another; a shard always takes the same.
  ShardCoder(spi::Device& device, std::vector<std::unique_ptr<spi::Stream>> streams)
      : device_(device), streams_(std::move(streams)) {}

  /// Makes room for all coded shards of a plan; only while nothing is under way.
  ///
  /// Errors: kUnsupported where the device's memory cannot be read by this program.
  Status configure(const ChunkTable& table, std::size_t ranks, Rank rank);

  /// A slot's next step: what it is made of, round 0.
  void begin(std::size_t slot, const spi::ChunkSubmission& submission);
  unsigned round(std::size_t slot) const noexcept { return item(slot).work.round; }
  void next_round(std::size_t slot) noexcept { ++item(slot).work.round; }
  bool is_last_round(std::size_t slot) const noexcept;

  /// This rank's wire of a round, once it is encoded.
  std::span<const std::byte> own_wire(std::size_t slot, unsigned round) const noexcept;
  /// The mean's wire of a round, as it was reduced here.
  std::span<const std::byte> mean_wire(std::size_t slot, unsigned round) const noexcept;
  /// Room for the mean's wire of the current round, from its owner.
  std::span<std::byte> mean_room(std::size_t slot, std::size_t bytes) noexcept;

  void encode(std::size_t slot);
  /// The part of a rank for the reduction to come; those of all ranks, its own too.
  void set_part(std::size_t slot,
                std::size_t rank,
                std::uint64_t samples,
                std::span<const std::byte> wire) noexcept;
  /// Sums all parts and encodes the mean; or, in the all-gather form, only sums.
  void reduce(std::size_t slot, std::uint64_t total_samples, bool encodes_mean);
  void decode(std::size_t slot, std::uint64_t total_samples);
  /// No rank has samples: the result is zero.
  void clear(std::size_t slot);

  bool has_waiting() const noexcept;
  /// Posts what waits.
  Status post();
  /// Calls `done(slot, work)` for each piece of work that is done.
  template <typename Done>
  void collect(const Done& done) {
    for (std::size_t s = 0; s < works_.size(); ++s) {
      works_[s].collect(*streams_[s], [&](std::size_t slot) {
        take_length(item(slot));
        done(slot, std::as_const(item(slot).work));
      });
    }
  }

 private:
  struct Item {
    CodedWork work;
    std::vector<CodedPart> parts;         ///< by rank
    std::size_t wires_at = 0;             ///< in wires_: own wires by round, then the means'
    std::size_t capacity = 0;             ///< of each of them
    std::vector<std::size_t> own_bytes;   ///< by round
    std::vector<std::size_t> mean_bytes;  ///< by round
  };

  Item& item(std::size_t slot) noexcept { return items_[slot]; }
  const Item& item(std::size_t slot) const noexcept { return items_[slot]; }
  std::size_t stream_of(std::size_t slot) const noexcept { return slot / 2 % streams_.size(); }
  std::span<std::byte> wire_room(const Item& item, std::size_t number) const noexcept;
  static void take_length(Item& item) noexcept;
  void push(std::size_t slot, CodedWork::Kind kind);
  Status post_one(std::size_t slot);

  spi::Device& device_;
  std::vector<Item> items_;  ///< by slot; of shards that are not coded empty; none if no shard is
  std::unique_ptr<spi::Buffer> wires_;
  std::vector<std::vector<float>> sums_;  ///< by stream
  std::vector<StreamWork> works_;         ///< by stream

  // Declared last, so that they end first: their work names events, wires and sums.
  std::vector<std::unique_ptr<spi::Stream>> streams_;
};

}  // namespace stretto::exchange

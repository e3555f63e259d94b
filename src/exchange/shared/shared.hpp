// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"
#include "exchange/chunk_table.hpp"
#include "exchange/fixed_ring.hpp"
#include "exchange/shared/arenas.hpp"
#include "exchange/shared/host.hpp"
#include "exchange/shared/mapping.hpp"
#include "exchange/shared/post_box.hpp"

#include "stretto/spi/exchange.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace stretto::exchange {

/// The owner sums in place, for ranks of one host that map each other's memory.
///
/// Each shard S has one owner q.  Rank r tells q by a letter that its part of S lies in memory that
/// q maps, and where the result is to go.  q waits until all P letters are there, reads all parts
/// in rank order, writes the result to each rank's memory, piece by piece while the piece is in the
/// cache, and tells each by a letter.  So every byte is read once and written once per rank, by the
/// owner; nothing is copied, unless memory did not come from allocate_arena: then it goes through a
/// staging area of the same size, whose pages come with their first use.
///
/// Reuse: a part may be rewritten, and a result read, when the owner's letter has come: nobody else
/// ever reads the one or writes the other.  A shard has two slots, by the parity of the step; a
/// rank cannot be two steps ahead of an owner, for a step needs the owner's own part.  So there are
/// at most two letters per shard on their way from one rank to another.
///
/// Threading: confined(progress).
class SharedExchange final : public spi::Exchange {
 public:
  SharedExchange(std::unique_ptr<Host> host,
                 std::unique_ptr<spi::Stream> stream,
                 FileDescriptor both,
                 spi::Device& device,
                 std::chrono::nanoseconds timeout);

  const spi::ExchangeTraits& traits() const noexcept override { return traits_; }
  Result<std::unique_ptr<spi::Buffer>> allocate_arena(spi::Device& device,
                                                      std::size_t bytes) override;
  /// All ranks call it together: memory is handed over here.  Blocking: up to the time-out.
  Status configure(std::span<const spi::ChunkDescription> chunks,
                   std::uint64_t plan_hash,
                   std::uint32_t epoch) override;
  std::size_t shards_of(ChunkId chunk) const noexcept override { return table_.shards_of(chunk); }
  ShardRange shard_range(ChunkId chunk, std::size_t shard) const noexcept override {
    return table_.shard_range(chunk, shard);
  }
  Status submit(const spi::ChunkSubmission& submission) override;
  Result<std::size_t> poll(std::span<spi::ExchangeEvent> events) override;
  std::vector<spi::PendingShard> pending() const override;
  int descriptor() const noexcept override {
    return both_.is_open() ? both_.get() : host_->descriptor();
  }
  TimePoint next_due() const noexcept override;

 private:
  /// Bytes of a shard that are summed and copied to all before the next: they stay in the cache.
  static constexpr std::size_t kPieceBytes = std::size_t{64} << 10;

  /// What is known of one rank's part of one shard in one step.
  struct Part {
    bool arrived = false;
    std::uint64_t samples = 0;
    const std::byte* contribution = nullptr;  ///< as this rank maps it
    std::byte* result = nullptr;
  };
  /// One shard in one step.
  struct Slot {
    std::uint64_t step = 0;
    std::byte* staged_result = nullptr;  ///< where the result comes to, if not to `result`
    std::byte* result = nullptr;
    std::uint64_t total_samples = 0;
    std::uint32_t arrived = 0;  ///< parts, the own one too
    bool submitted = false;
    bool home = false;
    std::optional<Rank> last;
  };
  /// A sum that is being posted to the stream.
  struct Sum {
    std::uint32_t slot = 0;
    std::size_t element = 0;  ///< of the piece at hand
    std::size_t target = 0;   ///< rank whose copy of the piece comes next
    std::size_t source = 0;   ///< rank whose part comes next
  };

  std::size_t own() const noexcept { return host_->rank(); }
  std::size_t slot_index(std::size_t shard, std::uint64_t step) const noexcept {
    return 2 * shard + static_cast<std::size_t>(step & 1U);
  }
  std::size_t owner_of(std::size_t slot) const noexcept { return index_of(table_.owner(slot / 2)); }
  Part& part(std::size_t slot, std::size_t rank) noexcept { return parts_[slot * ranks_ + rank]; }
  const Part& part(std::size_t slot, std::size_t rank) const noexcept {
    return parts_[slot * ranks_ + rank];
  }
  bool done(const Slot& slot) const noexcept { return !slot.submitted || slot.home; }

  Status hand_over();
  Status allocate_slots();
  void submit_shard(const spi::ChunkSubmission& submission, std::size_t shard);
  void open(std::size_t index, std::uint64_t step);
  Arenas::Place staging(std::size_t index, bool for_result) const noexcept;
  void send(std::size_t receiver, const Letter& letter);
  void wake_receivers();

  Status read_letters();
  Status take(std::size_t sender, const Letter& letter);
  Status take_part(std::size_t sender, const Letter& letter);
  Status take_result(std::size_t sender, const Letter& letter);
  std::byte* mapped(std::size_t rank,
                    std::uint32_t file,
                    std::uint64_t offset,
                    std::size_t bytes) const noexcept;
  void add_part(std::size_t index, std::size_t rank, const Part& part);
  Status post_waiting_sums();
  Status post_sum(Sum& sum);
  Status post_piece(Sum& sum, std::size_t elements);
  void collect_sums();
  void send_results(std::size_t index);
  void arrive_home(std::size_t index);
  void report(std::size_t index, spi::ExchangeEvent::Kind kind);

  std::unique_ptr<Host> host_;
  FileDescriptor both_;  ///< watches the bell and the stream; closed if the stream works at once
  spi::Device& device_;
  std::chrono::nanoseconds timeout_;
  spi::ExchangeTraits traits_;
  std::size_t ranks_;

  ChunkTable table_;
  std::uint64_t step_ = 0;
  std::vector<std::size_t> staging_offset_;  ///< by shard, within one staging area
  std::size_t staging_bytes_ = 0;            ///< of one area; there are 4: parity x (part, result)
  Mapping staging_;
  Arenas arenas_;
  std::vector<PostBox> boxes_;           ///< by sender
  std::vector<std::uint64_t> read_;      ///< letters read, by sender
  std::vector<Mapping> peer_staging_;    ///< by rank: file 0
  std::vector<PeerArenas> peer_arenas_;  ///< by rank: files 1, 2, ...
  std::vector<bool> to_wake_;

  std::vector<Slot> slots_;                            ///< [2 * shards]
  std::vector<Part> parts_;                            ///< [2 * shards][ranks]
  std::vector<std::unique_ptr<spi::Event>> sum_done_;  ///< [2 * shards], where this rank owns
  std::unique_ptr<spi::Buffer> accumulator_;
  FixedRing<Sum> to_sum_;
  FixedRing<std::uint32_t> summing_;
  FixedRing<spi::ExchangeEvent> events_;
  Status error_;
  std::unique_ptr<spi::Stream> stream_;  ///< last: it goes before the events and memory it uses
};

}  // namespace stretto::exchange

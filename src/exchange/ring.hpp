// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"
#include "exchange/chunk_table.hpp"
#include "exchange/factory.hpp"
#include "exchange/fixed_ring.hpp"
#include "exchange/stream_work.hpp"

#include "stretto/spi/exchange.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace stretto::exchange {

/// Each rank sends to the next alone.
///
/// Let P be the ranks, S a shard, q its owner.  The sum starts at rank q + 1 and is handed on:
///     s_1 = n_{q+1} g_{q+1},   s_{h+1} = s_h + n_{q+1+h} g_{q+1+h},   result = round(scale * s_P)
/// with ranks modulo P, scale = 1 / (n_0 + ... + n_{P-1}) and all s_h in float32; a rank without
/// samples hands on what it got.  The owner, where s_P comes together, hands the result on to q +
/// 1, and so on until all have it.  The shards of a chunk start at different ranks, so all links
/// are busy; all chunks are under way at the same time.
///
/// What travels: s_h as float32 whatever the dtype, the result in the dtype.  In 16 bits each of
/// P - 1 hops would round, and n g, which is not yet divided, would leave the range of float16.
/// The error is thus that of P - 1 additions in float32 and one rounding, as with an owner, only
/// that the order of adding differs from shard to shard: hence the order *native*.
///
/// Life-times: a contribution is read by this rank's own addition only; a result is written once
/// and read by the one message that hands it on.  A result can exist only when every contribution
/// to it has been read, so that contribution and result may be the same memory.
///
/// Why nothing waits in a circle, in whatever order ranks submit:
///  * An announcement waits for nothing.  A partial sum is accepted only when this rank's own part
///    has been submitted and a buffer is free; from then on it needs no peer and no user to arrive
///    and to be added to.
///  * Buffers are in P classes.  A sum that has come over h hops lies in a buffer of class h, and
///    leaves it when the next rank has accepted it, for which that rank needs a buffer of class
///    h + 1.  In class P - 1 the sum is complete and the buffer free at once.  So by induction from
///    the last class down every buffer comes free, provided that every rank submits its parts.
///  * A rank that is a step ahead may hold buffers for parts that others have yet to submit; but it
///    has ended the step in which they are, so it has handed on all sums of that step and no sum of
///    it will ask this rank for a buffer.
///  * A result is accepted into the user's memory at once and needs no buffer, so that it is sent
///    without asking (spi::kExpected).
/// A shard has two slots, by the parity of the step, for the same reason as with an owner.
///
/// Threading: confined(progress).
class RingExchange final : public spi::Exchange {
 public:
  RingExchange(spi::Transport& transport,
               std::unique_ptr<spi::Stream> stream,
               FileDescriptor both,
               spi::Device& device,
               const RingOptions& options);

  const spi::ExchangeTraits& traits() const noexcept override { return traits_; }
  Result<std::unique_ptr<spi::Buffer>> allocate_arena(spi::Device& device,
                                                      std::size_t bytes) override;
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
    return both_.is_open() ? both_.get() : transport_.descriptor();
  }
  TimePoint next_due() const noexcept override;

 private:
  /// One shard in one step.
  struct Slot {
    std::uint64_t step = 0;
    const std::byte* contribution = nullptr;
    std::byte* result = nullptr;
    std::uint64_t samples = 0;  ///< of this rank
    std::uint64_t samples_so_far =
        0;                      ///< of the ranks before it, then of it too; in the end of all
    spi::MessageId message{0};  ///< the announced partial sum
    std::uint32_t priority = 0;
    std::int32_t buffer = -1;      ///< in the class of this rank's hop
    std::uint32_t sends_left = 0;  ///< messages of this slot that may still be read
    bool submitted = false;
    bool announced = false;  ///< the partial sum of the ranks before
    bool empty = false;      ///< those have no samples, so that no payload comes
    bool handed_on = false;  ///< the partial sum, to the next rank, which has taken it
    bool receiving = false;  ///< the result
    bool home = false;
    bool released = true;
  };

  /// A message that waits for room in the transport.
  struct Outgoing {
    std::uint32_t slot = 0;
    spi::Stage stage = spi::Stage::kPartialSum;
  };

  /// The buffers of one hop.
  struct Class {
    std::vector<std::int32_t> free;
    std::vector<std::uint32_t> waiting;  ///< slots, as a heap: earliest step, then priority first
  };

  std::size_t own() const noexcept { return index_of(transport_.rank()); }
  Rank next() const noexcept { return Rank{static_cast<std::uint32_t>((own() + 1) % ranks_)}; }
  Rank previous() const noexcept {
    return Rank{static_cast<std::uint32_t>((own() + ranks_ - 1) % ranks_)};
  }
  /// How many ranks add to a shard before this one.
  std::size_t hop(std::size_t shard) const noexcept {
    return (own() + 2 * ranks_ - 1 - index_of(table_.owner(shard))) % ranks_;
  }
  bool is_last(std::size_t shard) const noexcept { return hop(shard) + 1 == ranks_; }
  std::size_t slot_index(std::size_t shard, std::uint64_t step) const noexcept {
    return 2 * shard + static_cast<std::size_t>(step & 1U);
  }
  bool done(const Slot& slot) const noexcept { return !slot.submitted || slot.released; }
  std::size_t elements(std::size_t shard) const noexcept;
  std::byte* buffer_of(std::size_t index) const noexcept;
  bool later(std::uint32_t a, std::uint32_t b) const noexcept;

  Status allocate_buffers();
  Status submit_shard(const spi::ChunkSubmission& submission, std::size_t shard);
  void open(std::size_t index, std::uint64_t step);
  void begin(std::size_t index);
  void add(std::size_t index);
  Status advance();
  Status give_buffers();
  void free_buffer(std::size_t index);

  Status post_waiting_sums();
  Status post_sum(std::size_t index);
  void collect_sums();
  void on_added(std::size_t index);
  void hand_on(std::size_t index, spi::Stage stage);
  void arrive_home(std::size_t index);
  void release_if_done(std::size_t index);
  void report(std::size_t index, spi::ExchangeEvent::Kind kind);

  Status send_waiting();
  DType travels_as(std::size_t shard, spi::Stage stage) const noexcept;
  std::size_t payload_bytes(std::size_t shard,
                            spi::Stage stage,
                            std::uint64_t samples) const noexcept;
  spi::MessageHeader header_of(std::size_t index, spi::Stage stage) const;
  Status take(const spi::TransportEvent& event);
  Status check_header(const spi::TransportEvent& event, std::size_t& shard) const;
  Status on_announced(const spi::TransportEvent& event);
  Status on_partial_announced(const spi::TransportEvent& event, std::size_t shard);
  Status on_result_announced(const spi::TransportEvent& event, std::size_t shard);
  Status on_received(const spi::TransportEvent& event);
  void on_sent(std::uint64_t token);
  Status on_lost(Rank peer);
  Status check_lost(std::size_t index) const;

  spi::Transport& transport_;
  spi::Device& device_;
  FileDescriptor both_;  ///< watches transport and stream; closed if the stream works at once
  RingOptions options_;
  spi::ExchangeTraits traits_;
  std::size_t ranks_;

  ChunkTable table_;
  std::uint64_t plan_hash_ = 0;
  std::uint32_t epoch_ = 0;
  std::uint64_t step_ = 0;  ///< the latest that this rank has submitted to

  std::vector<Slot> slots_;  ///< [2 * shards]
  std::unique_ptr<spi::Buffer> scratch_;
  std::size_t buffer_bytes_ = 0;
  std::vector<Class> classes_;  ///< [ranks]

  FixedRing<Outgoing> outgoing_;
  StreamWork sums_;  ///< by slot
  FixedRing<spi::ExchangeEvent> events_;
  bool lost_previous_ = false;
  bool lost_next_ = false;
  Status error_;

  // Declared last, so that it ends first: its work names events and scratch.
  std::unique_ptr<spi::Stream> stream_;
};

}  // namespace stretto::exchange

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"
#include "exchange/chunk_table.hpp"
#include "exchange/factory.hpp"
#include "exchange/fixed_ring.hpp"
#include "exchange/shard_coder.hpp"
#include "exchange/stream_work.hpp"

#include "stretto/spi/exchange.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace stretto::exchange {

/// The owner sums.
///
/// Let P be the ranks, S a shard, q its owner.  Each rank r announces its part of S to q and sends
/// it when q has room; q waits until all P parts are there, computes
///     result = round(scale * (n_0 g_0 + n_1 g_1 + ... + n_{P-1} g_{P-1})),  scale = 1 / (n_0 + ...
///     )
/// in float32 and in that order, and sends result to all.  In one hop every rank plays q for
/// itself.
///
/// A shard has two slots, by the parity of the step: a rank that is done with step t may send parts
/// of step t + 1 to an owner that still waits for another result of step t.  It cannot be further
/// ahead, for step t + 1 cannot end without this owner's own part.
///
/// A coded shard: each rank encodes its part and sends the wire; q, once its own part is encoded
/// too, decodes all, adds in the same order and encodes the mean; every rank decodes that.  Where a
/// codec has several rounds, a shard goes this way once for each; no rank can be a round ahead of
/// q, since it needs q's answer first.  In one hop (all-gather) nothing is encoded a second time.
///
/// Scratch: parts of other ranks wait in blocks of P - 1 shards.  A shard gets a whole block or
/// none, so that one that has a block needs nothing further; shards of step t + 1 get blocks only
/// once all shards of step t have one.  So ranks that are ahead cannot starve one that is behind.
/// Where the scratch holds a block for every slot, parts are sent without asking (spi::kExpected);
/// results always are, since whoever waits for one has said where it goes.
///
/// Threading: confined(progress).
class OwnerExchange final : public spi::Exchange {
 public:
  OwnerExchange(spi::Transport& transport,
                std::unique_ptr<spi::Stream> stream,
                std::vector<std::unique_ptr<spi::Stream>> coding_streams,
                FileDescriptor all,
                spi::Device& device,
                const OwnerOptions& options);

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
    return all_.is_open() ? all_.get() : transport_.descriptor();
  }
  TimePoint next_due() const noexcept override;

 private:
  /// What came of one rank's part of one shard in one step.
  struct Part {
    enum class State : std::uint8_t { kNone, kAnnounced, kAccepted, kArrived };
    State state = State::kNone;
    std::uint8_t sending = 0;  ///< messages of this shard to that rank that may still be read
    spi::MessageId message{0};
    std::uint64_t samples = 0;
    std::size_t payload_bytes = 0;
  };

  /// One shard in one step.
  struct Slot {
    std::uint64_t step = 0;
    const std::byte* contribution = nullptr;
    std::byte* result = nullptr;
    std::uint64_t samples = 0;
    std::uint64_t total_samples = 0;
    std::uint32_t priority = 0;
    std::uint32_t arrived = 0;     ///< parts of other ranks that are in place
    std::uint32_t sends_left = 0;  ///< messages of this slot that may still be read
    std::int32_t block = -1;       ///< of scratch
    bool submitted = false;
    bool encoded = false;  ///< this rank's part of a coded shard, in this round
    bool wants_block = false;
    bool settled = false;  ///< has a block, or needed none
    bool reducing = false;
    bool receiving = false;  ///< the result
    bool home = false;
    bool released = true;
    std::optional<Rank> last;
    spi::CodedFacts facts;
  };

  /// A message that waits for room in the transport.
  struct Outgoing {
    std::uint32_t slot = 0;
    std::uint32_t peer = 0;
    spi::Stage stage = spi::Stage::kContribution;
    unsigned round = 0;
  };

  std::size_t slot_index(std::size_t shard, std::uint64_t step) const noexcept {
    return 2 * shard + static_cast<std::size_t>(step & 1U);
  }
  Part& part(std::size_t slot, std::size_t rank) noexcept { return parts_[slot * ranks_ + rank]; }
  const Part& part(std::size_t slot, std::size_t rank) const noexcept {
    return parts_[slot * ranks_ + rank];
  }
  bool reduces(std::size_t shard, Rank rank) const noexcept {
    return table_.chunk(table_.chunk_of(shard)).one_hop || table_.owner(shard) == rank;
  }
  bool reduces(std::size_t shard) const noexcept { return reduces(shard, transport_.rank()); }
  bool done(const Slot& slot) const noexcept { return !slot.submitted || slot.released; }
  const spi::Codec* codec_of(std::size_t shard) const noexcept {
    return table_.chunk(table_.chunk_of(shard)).description.codec;
  }
  bool is_coded(std::size_t index) const noexcept { return codec_of(index / 2) != nullptr; }
  unsigned round_of(std::size_t index) const noexcept;
  std::size_t part_bytes(std::size_t shard) const noexcept;
  unsigned most_rounds() const noexcept;

  std::size_t owned_by(Rank rank) const noexcept;
  std::size_t blocks_for(std::size_t owned) const noexcept;
  Status allocate_scratch();
  Status submit_shard(const spi::ChunkSubmission& submission, std::size_t shard);
  void open(std::size_t index, std::uint64_t step);
  void send(std::size_t index, std::uint32_t peer, spi::Stage stage);
  void send_parts(std::size_t index);
  void send_results(std::size_t index);
  Status send_waiting();
  spi::MessageHeader header_of(const Outgoing& message) const;
  std::span<const std::byte> payload_of(const Outgoing& message) const;

  Status take(const spi::TransportEvent& event);
  Status check_header(const spi::TransportEvent& event, std::size_t& shard) const;
  bool has_right_length(const spi::MessageHeader& header, std::size_t shard) const noexcept;
  Status on_announced(const spi::TransportEvent& event);
  Status on_part_announced(const spi::TransportEvent& event, std::size_t shard);
  Status on_result_announced(const spi::TransportEvent& event, std::size_t shard);
  Status on_received(const spi::TransportEvent& event);
  Status on_lost(Rank peer);
  bool waits_for(std::size_t index, std::size_t peer) const noexcept;
  Status check_lost(std::size_t index) const;
  Status accept_part(std::size_t index, std::size_t rank);

  Status give_blocks();
  Status give_block(std::size_t index);
  void settle(std::size_t index);
  bool later(std::uint32_t a, std::uint32_t b) const noexcept;
  std::span<std::byte> scratch_of(std::size_t index, std::size_t rank) const;
  std::uint64_t samples_of(std::size_t index, std::size_t rank) const noexcept;
  std::uint64_t add_samples(std::size_t index) const noexcept;

  // Of coded shards; in owner_coded.cc.
  Status check_codecs(std::span<const spi::ChunkDescription> chunks) const;
  void begin_round(std::size_t index);
  void on_encoded(std::size_t index);
  void reduce_coded(std::size_t index);
  void decode_mean(std::size_t index);
  void on_coded(std::size_t index, const CodedWork& work);
  void end_round(std::size_t index);
  void collect_coded();
  void reduce_if_complete(std::size_t index);
  Status post_waiting_sums();
  Status post_sum(std::size_t index);
  void collect_sums();
  void add_missing(std::size_t index, Part::State state, std::vector<Rank>& missing) const;
  void on_reduced(std::size_t index);
  void free_block(std::size_t index);
  void arrive_home(std::size_t index);
  void release_if_done(std::size_t index);
  void report(std::size_t index, spi::ExchangeEvent::Kind kind);

  spi::Transport& transport_;
  spi::Device& device_;
  FileDescriptor all_;  ///< watches transport and streams; closed if all streams work at once
  OwnerOptions options_;
  spi::ExchangeTraits traits_;
  std::size_t ranks_;

  ChunkTable table_;
  std::uint64_t plan_hash_ = 0;
  std::uint32_t epoch_ = 0;
  std::uint64_t step_ = 0;                ///< the latest that this rank has submitted to
  std::size_t owned_ = 0;                 ///< shards that this rank reduces
  std::vector<bool> has_room_;            ///< by rank: for every part, whenever it comes
  std::array<std::size_t, 2> settled_{};  ///< shards with `settled`, by parity of the step

  std::vector<Slot> slots_;  ///< [2 * shards]
  std::vector<Part> parts_;  ///< [2 * shards][ranks]
  std::unique_ptr<spi::Buffer> scratch_;
  std::size_t block_bytes_ = 0;
  std::size_t shard_capacity_ = 0;  ///< bytes of one part in a block
  std::vector<std::int32_t> free_blocks_;
  std::vector<std::uint32_t> want_block_;  ///< slots, as a heap: earliest step, then priority first

  FixedRing<Outgoing> outgoing_;
  StreamWork sums_;  ///< by slot, where this rank reduces
  FixedRing<spi::ExchangeEvent> events_;
  std::vector<bool> lost_;  ///< by rank: its connection has ended
  bool any_lost_ = false;
  Status error_;

  // Declared last, so that they end first: their work names events and scratch.
  ShardCoder coder_;
  std::unique_ptr<spi::Stream> stream_;
};

}  // namespace stretto::exchange

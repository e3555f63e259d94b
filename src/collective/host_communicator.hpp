// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collective/base_communicator.hpp"
#include "collective/pipes.hpp"
#include "exchange/shared/arenas.hpp"
#include "exchange/shared/host.hpp"
#include "exchange/shared/mapping.hpp"

#include "stretto/collective.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stretto::collective {

/// Collectives of ranks that map each other's memory; whoever waits does the work.
///
/// Every collective is a number of rounds.  Memory is cut into one block per rank, its owner, and
/// blocks into pieces, one per round.  In a round a rank
///   stages    its pieces of all other ranks' blocks: they lie where the owners can read them,
///   produces  the piece of its own block from those of all ranks, and
///   takes     the pieces of all other ranks' blocks to its output.
/// Memory of an arena needs no staging, for the owners read it in place, and no taking, for they
/// write to it.  Other memory goes through rings of kSlots pieces that stay in the cache.  Each
/// rank counts its rounds of each kind in memory that all map, over all collectives, so that
/// nothing is ever reset:
///   stage(g)    waits until all have produced g - kSlots + 1   (the slot was read)
///   produce(g)  waits until all have staged g + 1, and taken g - kSlots + 1 (the slot was read)
///   take(g)     waits until all have produced g + 1
/// A rank can be at most one collective ahead of another, so two notes that say what it is suffice.
///
/// Threading: thread-compatible.
class HostCommunicator final : public BaseCommunicator {
 public:
  static Result<std::unique_ptr<Communicator>> make(std::shared_ptr<Group> group,
                                                    const EngineOptions& options,
                                                    std::unique_ptr<exchange::Host> host,
                                                    Deadline deadline);

  std::string exchange_name() const override { return "shared"; }
  std::string order_name() const override { return "rank"; }
  Result<std::unique_ptr<spi::Buffer>> allocate(std::size_t bytes) override;
  bool advance_to(std::uint64_t number) override;
  Status wait_for(std::uint64_t number, Deadline deadline) override;

 private:
  /// What a rank is about to do, for the others to read and to check.
  struct alignas(64) Note {
    std::uint64_t number = 0;
    Call call;
    std::uint64_t input_offset = 0;
    std::uint64_t output_offset = 0;
    std::uint32_t input_file = 0;   ///< 0: staged
    std::uint32_t output_file = 0;  ///< 0: taken
  };
  struct alignas(64) Counter {
    std::atomic<std::uint64_t> value{0};
  };
  /// What a rank shows to the others, in front of its slots.
  struct Desk {
    Counter staged, produced, taken;
    std::array<Note, 2> notes;
  };
  /// A collective of this rank.
  struct Started {
    Job job;
    Note note;
  };
  /// What is known of another rank: how far it was when last looked, and where its memory is.
  struct Peer {
    std::uint64_t staged = 0;
    std::uint64_t produced = 0;
    std::uint64_t taken = 0;
    const std::byte* input = nullptr;  ///< null: staged
    std::byte* output = nullptr;       ///< null: taken
  };
  /// One owner's block, in elements.
  struct Block {
    std::size_t input = 0;
    std::size_t output = 0;
    std::size_t count = 0;
  };

  static constexpr std::size_t kSlots = 4;
  static constexpr std::size_t kPieceBytes = std::size_t{64} << 10;
  /// What is added and copied on at once: it stays in the first-level cache.
  static constexpr std::size_t kBiteBytes = std::size_t{8} << 10;

  HostCommunicator(std::shared_ptr<Group> group,
                   const EngineOptions& options,
                   std::unique_ptr<exchange::Host> host);

  Status build(Deadline deadline);
  std::uint64_t start(const Job& job) override;
  std::uint64_t start_send(const std::byte* data, std::size_t bytes, std::size_t peer) override;
  std::uint64_t start_receive(std::byte* data, std::size_t bytes, std::size_t peer) override;
  /// What others have to come lies in memory that they map, whoever goes.
  Status leave(Deadline /*deadline*/) override { return {}; }
  void begin();
  Block block(std::size_t owner) const noexcept;
  std::size_t width() const noexcept { return job().call.width(); }
  bool sums() const noexcept { return job().call.sums(); }
  bool distributes() const noexcept { return job().call.kind != Kind::kReduceScatter; }
  const Job& job() const noexcept { return started_.front().job; }
  const Note& note() const noexcept { return started_.front().note; }

  bool ended(std::uint64_t number) const noexcept;
  bool advance();
  bool advance_job();
  bool stage();
  bool produce();
  bool take();
  bool all_reach(std::uint64_t Peer::*known, Counter Desk::*counter, std::uint64_t least) noexcept;
  bool check_notes();
  Status check_note(std::size_t peer, const Note& note);
  void produce_bite(std::size_t element, std::size_t count, std::byte* slot);
  void sum_bite(std::size_t element, std::size_t count, std::byte* destination);
  void publish(Counter Desk::*counter, std::uint64_t value);
  Status sleep(Deadline deadline);

  Desk& desk(std::size_t rank) const noexcept;
  std::byte* stage_slot(std::size_t rank, std::uint64_t round, std::size_t owner) const noexcept;
  std::byte* result_slot(std::size_t rank, std::uint64_t round) const noexcept;
  std::size_t stage_bytes() const noexcept { return kSlots * ranks_ * kPieceBytes; }

  std::unique_ptr<exchange::Host> host_;
  std::size_t ranks_;
  bool may_spin_ = true;
  std::vector<exchange::Mapping> desks_;  ///< by rank
  exchange::Arenas arenas_;
  std::vector<exchange::PeerArenas> peer_arenas_;  ///< by rank
  std::vector<Peer> peers_;                        ///< by rank; the own one is unused
  std::vector<float> accumulator_;
  std::optional<Pipes> pipes_;

  std::deque<Started> started_;  ///< the first is under way
  bool begun_ = false;
  std::uint64_t issued_ = 0;
  std::uint64_t ended_ = 0;
  std::uint64_t base_ = 0;    ///< rounds before this collective
  std::uint64_t rounds_ = 0;  ///< of this collective
  std::uint64_t staged_ = 0;
  std::uint64_t produced_ = 0;
  std::uint64_t taken_ = 0;
  bool all_read_in_place_ = false;  ///< every rank's input is mapped: nobody stages
  bool all_write_through_ = false;  ///< every rank's output is mapped: nobody takes
};

}  // namespace stretto::collective

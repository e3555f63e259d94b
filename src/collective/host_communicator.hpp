// SPDX-License-Identifier: Apache-2.0
#pragma once

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
class HostCommunicator final : public Communicator {
 public:
  static Result<std::unique_ptr<Communicator>> make(std::shared_ptr<Group> group,
                                                    std::unique_ptr<exchange::Host> host,
                                                    Deadline deadline);

  std::size_t rank() const noexcept override { return host_->rank(); }
  std::size_t size() const noexcept override { return ranks_; }
  std::string exchange_name() const override { return "shared"; }
  Result<std::unique_ptr<spi::Buffer>> allocate(std::size_t bytes) override;
  Result<Collective> all_reduce(const std::byte* input,
                                std::byte* output,
                                std::size_t count,
                                DType dtype,
                                Reduction reduction) override;
  Result<Collective> reduce_scatter(const std::byte* input,
                                    std::byte* output,
                                    std::size_t count,
                                    DType dtype,
                                    Reduction reduction) override;
  Result<Collective> all_gather(const std::byte* input,
                                std::byte* output,
                                std::size_t bytes) override;
  Result<Collective> broadcast(std::byte* data, std::size_t bytes, std::size_t root) override;
  Result<Collective> barrier() override;
  Result<Collective> send(const std::byte* data, std::size_t bytes, std::size_t peer) override;
  Result<Collective> receive(std::byte* data, std::size_t bytes, std::size_t peer) override;
  bool advance_to(std::uint64_t number) override;
  Status wait_for(std::uint64_t number, Deadline deadline) override;

 private:
  enum class Kind : std::uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kBarrier };

  /// What a rank is about to do, for the others to read and to check.
  struct alignas(64) Note {
    std::uint64_t number = 0;
    std::uint64_t count = 0;
    std::uint64_t input_offset = 0;
    std::uint64_t output_offset = 0;
    std::uint32_t input_file = 0;   ///< 0: staged
    std::uint32_t output_file = 0;  ///< 0: taken
    std::uint32_t root = 0;
    Kind kind = Kind::kBarrier;
    DType dtype = DType::kFloat32;
    Reduction reduction = Reduction::kSum;
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
  struct Job {
    Note note;
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
  };
  /// What is known of another rank: how far it was when last looked, and where its memory is.
  struct Peer {
    std::uint64_t staged = 0;
    std::uint64_t produced = 0;
    std::uint64_t taken = 0;
    std::uint64_t checked = 0;         ///< number of the last collective whose note was read
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

  HostCommunicator(std::shared_ptr<Group> group, std::unique_ptr<exchange::Host> host);

  Status build(Deadline deadline);
  Result<Collective> start(Job job, std::size_t input_bytes, std::size_t output_bytes);
  void begin();
  Block block(std::size_t owner) const noexcept;
  std::size_t width() const noexcept;
  bool sums() const noexcept;
  bool distributes() const noexcept { return job().note.kind != Kind::kReduceScatter; }
  const Job& job() const noexcept { return jobs_.front(); }

  bool ended(std::uint64_t number) const noexcept;
  Status check_peer(std::size_t peer) const;
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
  std::byte* mapped(std::size_t rank,
                    std::uint32_t file,
                    std::uint64_t offset,
                    std::size_t bytes) const noexcept;

  std::shared_ptr<Group> group_;  // shared with the caller and whatever else was made from it
  std::unique_ptr<exchange::Host> host_;
  std::size_t ranks_;
  bool may_spin_ = true;
  std::vector<exchange::Mapping> desks_;  ///< by rank
  exchange::Arenas arenas_;
  std::vector<std::vector<exchange::Mapping>> files_;  ///< by rank: its arenas, as mapped here
  std::vector<Peer> peers_;                            ///< by rank; the own one is unused
  std::vector<float> accumulator_;
  std::optional<Pipes> pipes_;

  std::deque<Job> jobs_;  ///< the first is under way
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
  Status error_;
};

}  // namespace stretto::collective

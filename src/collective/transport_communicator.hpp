// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collective/base_communicator.hpp"
#include "collective/pipes.hpp"
#include "collective/plan_gate.hpp"

#include "stretto/collective.hpp"
#include "stretto/spi/device.hpp"
#include "stretto/spi/exchange.hpp"
#include "stretto/spi/transport.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stretto::collective {

/// Collectives of ranks on several hosts, one after the other; whoever waits does the work.
///
/// P ranks, S bytes; costs are those of one rank and one direction.
///   reductions  go through the exchange *owner*, whose plan is made for one shape: 2 hops,
///               2 S (P-1) / P bytes.  Another shape is another plan; nobody meets for it
///               (plan_gate.hpp).
///   all_gather  everyone sends its block of S bytes to everyone, r+1 first: 1 hop, S (P-1) bytes.
///   broadcast   short ones: the root sends to everyone, 1 hop, S (P-1) bytes of the root.  Others
///               are cut into pieces, which the root deals out to the P-1 others; each forwards
///               its pieces to the other P-2: 2 hops, S bytes of the root, S (P-2) / (P-1) of
///               each other.  A chain would send no more and take P-1 hops; a tree sends twice S
///               or more from some rank.
///   barrier     in round k each rank sends an empty message to r + 2^k and waits for that of
///               r - 2^k: log2 P rounds (Hensgen, Finkel and Manber, 1988).
///
/// At its beginning each rank tells r+1 by a header what it calls.  Where two ranks call
/// differently, two neighbours do: the second tells all, who tell all, so that nobody waits in
/// vain.
///
/// Threading: thread-compatible.
class TransportCommunicator final : public BaseCommunicator {
 public:
  static Result<std::unique_ptr<Communicator>> make(std::shared_ptr<Group> group,
                                                    const EngineOptions& options);

  std::string exchange_name() const override { return name_; }
  std::string order_name() const override { return std::string(spi::to_string(order_)); }
  Result<std::unique_ptr<spi::Buffer>> allocate(std::size_t bytes) override;
  bool advance_to(std::uint64_t number) override;
  Status wait_for(std::uint64_t number, Deadline deadline) override;

 private:
  /// What a message is for; travels as the header's flags.
  enum class Use : std::uint8_t { kUser, kData, kNotice, kReport };
  /// Counts messages of a pair that end in any order, as far as all before them have ended too.
  class InTurn {
   public:
    void add(std::uint64_t place);
    std::uint64_t count() const noexcept { return count_; }

   private:
    std::uint64_t count_ = 0;
    std::set<std::uint64_t> ahead_;  ///< ended before one that was started earlier
  };

  struct Outgoing {
    spi::MessageHeader header;
    std::span<const std::byte> payload;
  };
  struct Announced {
    spi::MessageId message{0};
    spi::MessageHeader header;
  };
  struct Receive {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  /// Messages with one rank.
  struct Peer {
    std::deque<Outgoing> sends;       ///< not announced yet
    std::deque<Receive> receives;     ///< that no message was found for yet
    std::deque<Announced> announced;  ///< that nobody receives yet
    std::deque<Announced> early;      ///< for a collective that this rank has not begun
    std::size_t to_go = 0;            ///< of the collective under way
    std::size_t to_come = 0;
    bool lost = false;
    std::uint64_t sends_issued = 0;
    std::uint64_t receives_issued = 0;
    std::uint64_t receives_matched = 0;
    InTurn sends_ended;
    InTurn receives_ended;
  };
  /// The reduction under way and its plan.
  struct Plan {
    std::uint32_t number = 0;  ///< 0: there is none yet
    Call call;                 ///< what it was made for
    std::size_t chunks = 0;
    std::size_t chunk_elements = 1;  ///< of every chunk but the last
    std::size_t shards = 0;
    std::uint64_t step = 0;
    std::size_t next_chunk = 0;  ///< to submit
    std::size_t home = 0;
    std::size_t released = 0;
  };

  TransportCommunicator(std::shared_ptr<Group> group, const EngineOptions& options);

  Status build();
  std::uint64_t start(const Job& job) override;
  std::uint64_t start_send(const std::byte* data, std::size_t bytes, std::size_t peer) override;
  std::uint64_t start_receive(std::byte* data, std::size_t bytes, std::size_t peer) override;
  Status leave(Deadline deadline) override;
  bool ended(std::uint64_t number) const noexcept;
  bool advance();
  Result<bool> advance_job();
  void keep(const Status& status);
  void let_go() noexcept;
  Status begin();
  void end();
  Status sleep(Deadline deadline);

  // transport_reductions.cc
  Status begin_reduction();
  Status take_plan(const Call& call);
  Status submit();
  Result<bool> advance_reduction();

  // transport_collectives.cc
  const Call& call() const noexcept { return jobs_.front().call; }
  std::size_t number() const noexcept { return ended_ + 1; }
  std::size_t after(std::size_t steps) const noexcept { return (rank() + steps) % size(); }
  bool is_direct() const noexcept;
  std::size_t piece_bytes() const noexcept;
  std::size_t forwarder_of(std::size_t piece) const noexcept;
  void begin_all_gather();
  void begin_broadcast();
  void begin_barrier();
  void send_data(std::size_t peer,
                 std::uint32_t hop,
                 std::size_t piece,
                 std::span<const std::byte> payload);
  std::span<std::byte> piece_at(std::size_t piece) const noexcept;
  std::optional<std::span<std::byte>> place_of(std::size_t peer,
                                               const spi::MessageHeader& header) const noexcept;
  void arrived(const spi::MessageHeader& header);
  bool all_moved() const noexcept;

  // transport_messages.cc
  spi::MessageHeader header_of(Use use, std::uint64_t number, const Call& call) const noexcept;
  void send_notice(std::size_t peer, Use use, std::size_t about, const Call& call);
  Result<bool> advance_messages();
  Result<bool> take_events();
  Status announce_waiting(std::size_t peer);
  Status take_event(const spi::TransportEvent& event);
  Status take_announced(std::size_t peer, const Announced& message);
  Status take_data(std::size_t peer, const Announced& message);
  Status take_early(std::size_t peer);
  Status take_notice(std::size_t from, const spi::MessageHeader& header);
  Status check_notice(std::uint64_t number, std::size_t peer, const Call& theirs);
  void tell_all(std::uint64_t number, const Call& own, std::size_t peer, const Call& theirs);
  Status take_lost(std::size_t peer);
  Status match(std::size_t peer);

  std::string name_;
  spi::SumOrder order_ = spi::SumOrder::kRank;
  std::vector<Peer> peers_;  ///< by rank
  std::unique_ptr<spi::Device> device_;
  std::unique_ptr<spi::Buffer> scratch_;  ///< all blocks of a reduce-scatter
  std::unique_ptr<spi::Exchange> exchange_;
  // The transports end first: until then other ranks may write to the memory of those above.
  std::unique_ptr<PlanGate> transport_;       ///< the exchange's
  std::unique_ptr<spi::Transport> messages_;  ///< for all else: an exchange wants its own
  bool may_spin_ = true;

  std::deque<Job> jobs_;  ///< the first is under way
  bool begun_ = false;
  Plan plan_;
  std::size_t rounds_ = 0;         ///< of a barrier: those sent
  std::uint64_t rounds_come_ = 0;  ///< of a barrier: bits
  std::uint64_t issued_ = 0;
  std::uint64_t ended_ = 0;
  std::array<Call, 16> recent_;  ///< the latest calls, by number, for notices that come late
  /// Notices of collectives that this rank has not started, by number.
  std::multimap<std::uint64_t, std::pair<std::size_t, Call>> notices_;
};

}  // namespace stretto::collective

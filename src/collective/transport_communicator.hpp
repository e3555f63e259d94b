// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collective/base_communicator.hpp"
#include "collective/pipes.hpp"

#include "stretto/collective.hpp"
#include "stretto/spi/device.hpp"
#include "stretto/spi/exchange.hpp"
#include "stretto/spi/transport.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace stretto::collective {

/// Collectives of ranks on several hosts, one after the other; whoever waits does the work.
///
/// Reductions go through an exchange.  Its plan is made for one shape; a collective of the same
/// shape as the one before keeps it, otherwise the ranks meet over their control connections first,
/// for nobody may send for a plan that another has not taken.  What is not added (broadcast,
/// all-gather, barrier) goes over the control connections: right, but not fast.
///
/// Threading: thread-compatible.    Blocking: also `done` where ranks meet as above, until all
/// have.
class TransportCommunicator final : public BaseCommunicator {
 public:
  static Result<std::unique_ptr<Communicator>> make(std::shared_ptr<Group> group,
                                                    const EngineOptions& options);

  std::string exchange_name() const override { return exchange_->traits().name; }
  Result<std::unique_ptr<spi::Buffer>> allocate(std::size_t bytes) override;
  bool advance_to(std::uint64_t number) override;
  Status wait_for(std::uint64_t number, Deadline deadline) override;

 private:
  /// Messages with one rank.
  struct Peer {
    struct Receive {
      std::byte* data = nullptr;
      std::size_t bytes = 0;
    };
    struct Announced {
      spi::MessageId message{0};
      std::size_t bytes = 0;
    };
    std::deque<std::span<const std::byte>> sends;  ///< not announced yet
    std::deque<Receive> receives;                  ///< that no message was found for yet
    std::deque<Announced> announced;               ///< that nobody receives yet
    std::uint64_t sends_issued = 0;
    std::uint64_t sends_ended = 0;
    std::uint64_t receives_issued = 0;
    std::uint64_t receives_ended = 0;
  };

  TransportCommunicator(std::shared_ptr<Group> group, const EngineOptions& options);

  Status build();
  std::uint64_t start(const Job& job) override;
  std::uint64_t start_send(const std::byte* data, std::size_t bytes, std::size_t peer) override;
  std::uint64_t start_receive(std::byte* data, std::size_t bytes, std::size_t peer) override;
  bool ended(std::uint64_t number) const noexcept;
  Status begin();
  void end();
  Status take_plan(const Job& job);
  Status submit();
  bool advance();
  bool advance_job();
  Result<bool> advance_messages();
  Status take_message(const spi::TransportEvent& event);
  Status match(std::size_t peer);
  Status sleep(Deadline deadline);

  std::unique_ptr<spi::Transport> transport_;  ///< the exchange's
  std::unique_ptr<spi::Transport> messages_;   ///< for send and receive: an exchange wants its own
  std::vector<Peer> peers_;                    ///< by rank
  std::unique_ptr<spi::Device> device_;
  std::unique_ptr<spi::Exchange> exchange_;
  bool may_spin_ = true;

  std::deque<Job> jobs_;  ///< the first is under way
  bool begun_ = false;
  bool planned_ = false;
  std::uint64_t plan_key_ = 0;      ///< what the plan was made for
  std::size_t chunks_ = 0;          ///< of the plan
  std::size_t chunk_elements_ = 1;  ///< of every chunk but the last
  std::size_t shards_ = 0;
  std::uint64_t step_ = 0;
  std::size_t next_chunk_ = 0;  ///< to submit
  std::size_t home_ = 0;
  std::size_t released_ = 0;
  std::unique_ptr<spi::Buffer> scratch_;  ///< all blocks of a reduce-scatter
  std::uint64_t issued_ = 0;
  std::uint64_t ended_ = 0;
};

}  // namespace stretto::collective

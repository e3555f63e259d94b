// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/group.hpp"
#include "stretto/options.hpp"
#include "stretto/spi/device.hpp"
#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace stretto {

class Communicator;

/// A collective that was started.  A small value; copies mean the same collective.
///
/// Threading: thread-compatible, with its communicator, which outlives it.
class Collective {
 public:
  Collective() noexcept = default;
  Collective(Communicator* communicator, std::uint64_t number) noexcept
      : communicator_(communicator), number_(number) {}

  /// Moves what can move; returns whether this collective has ended, well or not.  Never blocks.
  bool done();
  /// Blocks until it has ended, or the deadline; the calling thread does the work.
  ///
  /// Errors: kDeadlineExceeded, and the collective goes on; else what ended the communicator.
  Status wait(Deadline deadline);

 private:
  Communicator* communicator_ = nullptr;
  std::uint64_t number_ = 0;
};

/// What becomes of all ranks' values.
enum class Reduction : std::uint8_t { kSum, kMean };

/// Collectives over the ranks of a group, for memory of any kind and size.
///
/// All ranks start the same collectives in the same order.  Each returns at once; waiting for its
/// handle moves it, and all that were started before it.  Sums are made in float32 and rounded
/// once, and all ranks have the same bits.  They are made in rank order, so the same bits whatever
/// the memory or the way; but for the exchanges ring and mpi, whose order is their own and which
/// only `OrderChoice::kAny` allows.
///
/// On one host ranks read each other's memory: in place if it came from `allocate`, else through a
/// staging area that stays in the cache.
///
/// Shapes:    counts in elements, from 0 to more than 2^31.  Input and output are the same memory
///            (where that makes sense) or do not overlap.
/// Threading: thread-compatible.    Blocking: only allocate, split and waiting.
/// Ownership: memory stays valid, inputs unchanged and outputs unread, until the handle is done.
/// Errors:    kInvalidArgument if ranks call differently; the first error ends the communicator.
class Communicator {
 public:
  /// Connects the ranks of a group; all call it together.  Of the options it heeds exchange (but
  /// not one-hop), order, transport, link, chunk_bytes (0: the default), one_hop_bytes,
  /// scratch_bytes and reduction_threads.
  static Result<std::unique_ptr<Communicator>> create(std::shared_ptr<Group> group,
                                                      const EngineOptions& options);

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  virtual std::size_t rank() const noexcept = 0;
  virtual std::size_t size() const noexcept = 0;
  /// How bytes move: "shared", "owner", "ring" or "mpi".
  virtual std::string exchange_name() const = 0;
  /// In which order it adds: "rank" or "native".
  virtual std::string order_name() const = 0;

  /// Memory that is fastest to use here.  All ranks call it together, each with its own size.
  virtual Result<std::unique_ptr<spi::Buffer>> allocate(std::size_t bytes) = 0;

  /// output[i] = input[i] of all ranks together, on all ranks.
  virtual Result<Collective> all_reduce(const std::byte* input,
                                        std::byte* output,
                                        std::size_t count,
                                        DType dtype,
                                        Reduction reduction) = 0;

  /// Rank r's output[i] = input[r * count + i] of all ranks together; input holds size() * count.
  virtual Result<Collective> reduce_scatter(const std::byte* input,
                                            std::byte* output,
                                            std::size_t count,
                                            DType dtype,
                                            Reduction reduction) = 0;

  /// output = the inputs of all ranks one after the other, `bytes` of each, on all ranks.
  virtual Result<Collective> all_gather(const std::byte* input,
                                        std::byte* output,
                                        std::size_t bytes) = 0;

  /// data = the data of rank `root`, on all ranks.
  virtual Result<Collective> broadcast(std::byte* data, std::size_t bytes, std::size_t root) = 0;

  /// Ends when all ranks have started it.
  virtual Result<Collective> barrier() = 0;

  /// Sends to one rank, beside the collectives; messages of a pair arrive in the order of their
  /// sends, each where the receiver's next receive of as many bytes says.
  virtual Result<Collective> send(const std::byte* data, std::size_t bytes, std::size_t peer) = 0;
  virtual Result<Collective> receive(std::byte* data, std::size_t bytes, std::size_t peer) = 0;

  /// Parts the ranks: those that give the same color get a communicator of their own, with the
  /// same options, in which they are numbered in the order of key, then of rank.  Null without a
  /// color.  All ranks call it together.
  ///
  /// Parts move independently of each other and of this communicator, which may go before them;
  /// they keep its group.  Errors in them count ranks as they do, and say which ranks of the whole
  /// group these are.  A rank that is lost anywhere in the whole group ends all its parts, for the
  /// job has lost it; one that leaves on purpose ends only those that it is in, if they still need
  /// it.
  ///
  /// Blocking: until all have called, or the group's time-out.
  virtual Result<std::unique_ptr<Communicator>> split(std::optional<std::uint32_t> color,
                                                      std::int64_t key) = 0;

  /// Leaves on purpose, once all that this rank started is done: flushes what others still have to
  /// come from here, and says farewell.  Other ranks may be busy with that still, and go on; who
  /// lets a communicator go without it, or ends, may take their results away over a slow link.
  ///
  /// Blocking: until they have it, or the deadline.    Errors: kDeadlineExceeded, and it is closed
  /// nevertheless.
  virtual Status close(Deadline deadline) = 0;

  /// Moves everything that was started; whether collective `number` has ended.
  virtual bool advance_to(std::uint64_t number) = 0;
  /// The same, blocking.
  virtual Status wait_for(std::uint64_t number, Deadline deadline) = 0;

 protected:
  Communicator() = default;
};

inline bool Collective::done() {
  return communicator_ == nullptr || communicator_->advance_to(number_);
}
inline Status Collective::wait(Deadline deadline) {
  return communicator_ == nullptr ? Status() : communicator_->wait_for(number_, deadline);
}

}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exchange/chunk_table.hpp"
#include "exchange/fixed_ring.hpp"
#include "exchange/mpi/library.hpp"
#include "exchange/stream_work.hpp"

#include "stretto/spi/exchange.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace stretto::exchange {

/// MPI's own all-reduce, one for each chunk.
///
/// A rank writes n_r g_r as float32 into a buffer of the exchange's own, MPI adds these in place
/// (MPI_SUM, MPI_FLOAT), and the rank writes round(scale * sum) to the result, scale = 1 / (n_0 +
/// n_1
/// + ...).  A rank without samples gives zeros.  In which order MPI adds is MPI's choice, and may
/// depend on length and number of ranks: hence the order *native*.
///
/// The samples travel behind the elements, as kDigits digits to the base 4096: sums of digits over
/// up to 4096 ranks are whole numbers up to 2^24, which float32 adds exactly in any order.
///
/// Order: MPI pairs the n-th collective call of one rank with the n-th of another.  So chunks are
/// issued in the order of the plan, and a chunk that is ready early is held until all before it
/// have been issued; shards of a chunk cannot go one by one.
///
/// Life-times: a contribution is read by this rank's own addition only, and may be the same memory
/// as the result.  MPI reads and writes the exchange's buffer alone.  A pending all-reduce cannot
/// be taken back: if the exchange goes while one is under way, its buffer is left to MPI for good.
///
/// Who is late MPI does not say: `pending` names no ranks.  A rank that dies is known from the
/// control connections.
///
/// Threading: confined(progress).
class MpiExchange final : public spi::Exchange {
 public:
  MpiExchange(MPI_Comm communicator, std::unique_ptr<spi::Stream> stream, spi::Device& device);
  ~MpiExchange() override;

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
  /// MPI has no descriptor to sleep on: see next_due.
  int descriptor() const noexcept override { return stream_->descriptor(); }
  TimePoint next_due() const noexcept override;

 private:
  static constexpr std::size_t kDigits = 6;  ///< 72 bits

  /// One chunk in one step.
  struct Slot {
    enum class State : std::uint8_t {
      kHome,       ///< nothing to do
      kWeighting,  ///< its contribution is on its way into the buffer
      kHeld,       ///< in the buffer; chunks before it have not been issued
      kAdding,     ///< MPI has it
      kScaling,    ///< the sum is on its way into the result
    };
    State state = State::kHome;
    std::uint64_t step = 0;
    std::uint64_t samples = 0;
    std::uint64_t total_samples = 0;
    const std::byte* contribution = nullptr;
    std::byte* result = nullptr;
  };

  float* buffer_of(std::size_t chunk) const noexcept {
    return reinterpret_cast<float*>(buffer_->data() + offsets_[chunk]);
  }
  std::size_t elements(std::size_t chunk) const noexcept {
    return table_.chunk(chunk).description.element_count;
  }
  bool idle() const noexcept;
  void write_digits(std::size_t chunk, std::uint64_t samples);
  std::uint64_t read_digits(std::size_t chunk) const;
  Status post_waiting();
  Status post(std::size_t chunk);
  void collect_posted();
  Status issue_in_order();
  Status collect_sums();
  void report(std::size_t chunk, spi::ExchangeEvent::Kind kind);

  MPI_Comm communicator_;
  spi::Device& device_;
  spi::ExchangeTraits traits_;
  ChunkTable table_;
  std::uint64_t step_ = 0;  ///< the latest that this rank has submitted to
  std::size_t next_ = 0;    ///< chunk that is to be issued next

  std::unique_ptr<spi::Buffer> buffer_;
  std::vector<std::size_t> offsets_;           ///< bytes, by chunk
  std::vector<Slot> slots_;                    ///< by chunk
  std::vector<MPI_Request> requests_;          ///< under way
  std::vector<std::uint32_t> request_chunks_;  ///< whose they are
  std::vector<int> completed_;                 ///< places in requests_
  StreamWork work_;                            ///< by chunk
  FixedRing<spi::ExchangeEvent> events_;
  Status error_;
  std::unique_ptr<spi::Stream> stream_;  ///< last: it goes before the events and memory it uses
};

}  // namespace stretto::exchange

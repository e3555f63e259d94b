// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/codec.hpp"
#include "stretto/spi/device.hpp"
#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stretto::spi {

/// What becomes of the weighted sum over the ranks.
enum class Combine : std::uint8_t {
  kMean,  ///< it is divided by all samples together
  kSum,   ///< it stays as it is
};

/// A segment of a coded chunk.
struct CodedSegment {
  CodecSegment segment;
  std::size_t first_element = 0;  ///< in the chunk; behind the segment there may be padding
  std::string_view name;          ///< of its parameter, for errors
};

/// One chunk of the agreed plan, as an exchange sees it.
///
/// A coded chunk is one shard, whose owner is agreed with the plan: so what the owner keeps for it
/// stays with it whatever the plan.
///
/// Ownership: codec and segments are the caller's and stay until the next plan.
struct ChunkDescription {
  BucketId bucket{0};
  DType dtype = DType::kFloat32;
  std::size_t element_count = 0;
  Combine combine = Combine::kMean;
  const Codec* codec = nullptr;  ///< null: its bytes travel as they are; else kMean
  std::span<const CodedSegment> segments{};
  Rank owner{0};
};

/// What stays between the steps for a coded chunk; CodecMemory, for all of its segments.
///
/// Shapes: residuals [element_count] as the chunk; state and scratch by segment, one behind the
/// other, each padded to kMemoryAlignment floats.
struct CodedMemory {
  static constexpr std::size_t kMemoryAlignment = 16;
  std::uint64_t step = 0;  ///< what codecs draw their chances from; the same on all ranks
  const float* residual = nullptr;
  float* left = nullptr;
  float factor = 1;
  const float* state = nullptr;
  float* next_state = nullptr;
  float* scratch = nullptr;
  const float* owner_residual = nullptr;  ///< only where this rank owns the chunk
  float* owner_left = nullptr;

  static constexpr std::size_t padded(std::size_t floats) noexcept {
    return (floats + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
  }
};

/// What encoding a coded chunk has cost in fidelity, on this rank.
struct CodedFacts {
  std::size_t refused = 0;                       ///< values that were not finite, or beyond 2^60
  std::size_t first_refused_segment = SIZE_MAX;  ///< in which the first of them lay
  double value_squares = 0;
  double left_squares = 0;
};

/// One rank's part in the reduction of a chunk, or of some of its shards.
struct ChunkSubmission {
  std::uint64_t step = 0;
  ChunkId chunk{0};
  std::size_t first_shard = 0;
  std::size_t shard_count = 0;              ///< 0: all shards from first_shard on
  const std::byte* contribution = nullptr;  ///< start of the whole chunk; unused if samples is 0
  std::byte* result = nullptr;              ///< start of the whole chunk
  std::uint64_t samples = 1;                ///< weight of this contribution; 0: this rank has none
  std::uint32_t priority = 0;
  CodedMemory memory;  ///< of a coded chunk; the exchange's until kResult
};

/// What poll reports.
struct ExchangeEvent {
  enum class Kind : std::uint8_t {
    kReleased,  ///< nobody reads the contributions or results of these shards any more
    kResult,    ///< the results of these shards lie in place
  };
  Kind kind = Kind::kResult;
  std::uint64_t step = 0;
  ChunkId chunk{0};
  std::size_t first_shard = 0;
  std::size_t shard_count = 0;
  std::uint64_t samples = 0;  ///< of all ranks together; 0 if none contributed (the result is zero)
  std::uint64_t version = 0;  ///< of a value, from exchanges that return values; else 0
  std::optional<Rank> last;   ///< whose contribution came last, where this rank knows it
  CodedFacts coded;           ///< with the result of a coded chunk
};

/// A shard that is not yet home and the ranks whose part has not come, for error texts.
struct PendingShard {
  std::uint64_t step = 0;
  ChunkId chunk{0};
  std::size_t shard = 0;
  bool reduced_here = false;  ///< `missing` owe their parts; else `missing` is the rank that this
                              ///< one waits for (an owner, a neighbour), who may wait itself
  std::vector<Rank> missing;
};

/// In which order an exchange adds, and so whether its bits depend on anything but the plan.
enum class SumOrder : std::uint8_t {
  kRank,    ///< rank 0 + rank 1 + ..., in float32: the same bits with every exchange of this order
  kNative,  ///< whatever the library or topology gives: only with `--order any`
};

constexpr std::string_view to_string(SumOrder order) noexcept {
  return order == SumOrder::kRank ? "rank" : "native";
}

/// What comes back from an exchange.
enum class Returns : std::uint8_t { kMeanGradient, kValue };

struct ExchangeTraits {
  std::string name;  ///< "owner", "one-hop", "shared", ...
  SumOrder order = SumOrder::kRank;
  Returns returns = Returns::kMeanGradient;
  bool partial_chunks = false;  ///< shards may be submitted one by one, in any order on each rank
  bool any_order = false;       ///< ranks may submit chunks in different orders
  bool codecs = false;          ///< takes coded chunks
};

/// Turns every rank's chunk into what all of them need: sum(n_r g_r) / sum(n_r) over ranks r, where
/// n_r are the samples and g_r the contributions.
///
/// Shards: a chunk of n elements has `shards_of(chunk)` shards, the same on all ranks, and
/// `shard_range` says where each lies.
/// Shapes:    contribution and result [element_count] of the chunk's dtype; no overlap.
/// Threading: confined(progress).        Blocking: never.
/// A coded chunk: every rank's contribution, with its residual, is encoded; whoever reduces decodes
/// all, its own too, sums in rank order and encodes the mean, with a residual of its own; every
/// rank decodes that.  A rank without samples leaves its residual and state as they were; if no
/// rank has samples, nothing is left anywhere, and what the memory's next values are stays open.
///
/// Ownership: `contribution` stays unchanged until kReleased, `result` is the exchange's until
/// kResult.  The transport that an exchange stands on ends before it: until then other ranks may
/// write to memory of the exchange, whose destructor therefore leaves the transport alone.
/// Errors:    the first error is sticky: every later call returns it.
/// Numerics:  with SumOrder::kRank, products and sums in float32 in rank order, then one
///            multiplication by float32(1 / sum of samples), then one rounding to the dtype.
class Exchange {
 public:
  Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  virtual ~Exchange() = default;

  virtual const ExchangeTraits& traits() const noexcept = 0;

  /// Memory for contributions and results.  An exchange that works in place across processes gives
  /// memory of its own kind; the others take the device's.  Other memory is legal in submit, but
  /// may cost a copy.
  virtual Result<std::unique_ptr<Buffer>> allocate_arena(Device& device, std::size_t bytes) = 0;

  /// Takes the plan; all memory is allocated here, and handed over where ranks share it: so all
  /// ranks call it together, and it may block until they have.  Only while nothing is in flight.
  virtual Status configure(std::span<const ChunkDescription> chunks,
                           std::uint64_t plan_hash,
                           std::uint32_t epoch) = 0;

  virtual std::size_t shards_of(ChunkId chunk) const noexcept = 0;

  /// First element and length of a shard.
  struct ShardRange {
    std::size_t first = 0;
    std::size_t count = 0;
  };
  virtual ShardRange shard_range(ChunkId chunk, std::size_t shard) const noexcept = 0;

  /// Starts the reduction of a chunk, or of a run of its shards.
  ///
  /// Errors: kWouldBlock, poll and repeat; kInvalidArgument for a chunk that is not in the plan or
  /// was
  ///         submitted before in this step; kPeerLost.
  virtual Status submit(const ChunkSubmission& submission) = 0;

  /// Moves what can move and reports what happened.
  virtual Result<std::size_t> poll(std::span<ExchangeEvent> events) = 0;

  /// What is submitted and not home, for the text of an error.  May allocate.
  virtual std::vector<PendingShard> pending() const = 0;

  /// Readable when poll has something to do, if next_due was called after the last poll.
  virtual int descriptor() const noexcept = 0;
  /// When poll wants to be called though the descriptor is silent.  Whoever is about to sleep calls
  /// this first: from then on peers ring.
  virtual TimePoint next_due() const noexcept { return TimePoint::max(); }
};

}  // namespace stretto::spi

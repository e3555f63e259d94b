// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/board.hpp"
#include "engine/command.hpp"
#include "engine/error_feedback.hpp"
#include "engine/footer.hpp"
#include "schedule/plan.hpp"
#include "trace/recorder.hpp"

#include "stretto/engine.hpp"
#include "stretto/spi/device.hpp"
#include "stretto/spi/exchange.hpp"
#include "stretto/spi/transport.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stretto::engine {

/// What a Stepper works with.  Everything outlives it.
struct StepperParts {
  std::span<const ParameterSpec> parameters;  ///< the last one is the footer
  const schedule::Layout* layout = nullptr;
  const schedule::Coding* coding = nullptr;
  ErrorFeedback* feedback = nullptr;  ///< null where nothing has a codec
  spi::Exchange* exchange = nullptr;
  const spi::Transport* transport = nullptr;  ///< for its counters
  spi::Device* device = nullptr;
  std::byte* contributions = nullptr;  ///< the arena that gradients are written to
  std::byte* results = nullptr;        ///< the arena that sums come back to
  Board* board = nullptr;
  trace::Recorder* recorder = nullptr;
  EngineOptions options;
  Rank rank{0};
  std::size_t ranks = 1;
};

/// The state of a step: counts gradients down to chunks, launches chunks, counts results up to
/// parameters.  Every decision here is made without waiting, at the time that the caller says; the
/// clock is read only between the pieces of a large gradient.
///
/// The footer is a small parameter of the engine's own: per user parameter whether this rank used
/// it, and two flags.  It goes with everything else and makes the end of a step known to all.
///
/// Threading: confined(progress).
class Stepper {
 public:
  /// The flags of the footer before the one per parameter.
  static constexpr std::size_t kEnded = 0;
  static constexpr std::size_t kReplan = 1;
  static constexpr std::size_t kFlags = 2;

  static Result<std::unique_ptr<Stepper>> make(const StepperParts& parts);

  /// Takes a plan and the order that it was made for (may be empty); only between steps.
  Status set_plan(const schedule::Plan& plan,
                  std::span<const std::uint32_t> order,
                  std::uint32_t epoch);

  /// Errors: kWouldBlock, call again with the same command later.
  Status handle(const Command& command);
  /// Moves what can move; returns whether anything did.
  Result<bool> advance(TimePoint now);
  /// When advance wants to be called though no descriptor speaks.
  TimePoint next_due() const noexcept;

  /// Readable when copies into the arena are done; -1 if they are done at once.
  int descriptor() const noexcept { return stream_->descriptor(); }

  /// After a failure: gives up what has not begun and waits for the copy that has, so that nothing
  /// reads the user's memory or events any more.  Only describe_waiting may follow.
  void quiesce() noexcept { stream_.reset(); }

  bool in_step() const noexcept { return step_open_; }
  /// Order in which gradients appeared in the last step, by parameter (without the footer).
  std::span<const std::uint32_t> seen_order() const noexcept { return seen_order_; }
  /// "step 12, waiting for layer4.conv2.weight and 3 more; rank 2 has not sent its part".
  std::string describe_waiting() const;

 private:
  struct ShardState {
    std::uint32_t remaining = 0;  ///< parameters that have not arrived
    bool submitted = false;
  };
  struct ChunkState {
    std::size_t first_shard = 0;
    std::size_t shard_count = 0;
    std::size_t ready_shards = 0;
    std::size_t submitted_shards = 0;
    std::size_t home_shards = 0;
    TimePoint news{};  ///< when a shard of it last got ready
    TimePoint launched{};
    bool partial = false;  ///< in partial_
  };
  struct ParameterState {
    std::uint32_t first_shard = 0;
    std::uint32_t shard_count = 0;
    std::uint32_t away = 0;  ///< shards that are not home
    bool touched = false;
    bool queued = false;  ///< on its way into the arena, or there
    TimePoint ready{};    ///< when the last backward pass left it; never, if it did not
    std::size_t first_piece = 0;
    std::size_t piece_count = 0;
    std::size_t non_finite = 0;  ///< values, so far
  };
  /// A run of a parameter's shards that is brought into the arena by one copy.
  struct Piece {
    std::uint32_t parameter = 0;
    std::uint32_t first_shard = 0;
    std::uint32_t shard_count = 0;
    std::size_t first_element = 0;  ///< in the parameter
    std::size_t element_count = 0;
    std::unique_ptr<spi::Event> copied;
  };

  explicit Stepper(const StepperParts& parts);

  std::size_t footer() const noexcept { return parameters_.size() - 1; }
  std::byte* slot(std::size_t parameter) const noexcept;
  std::byte* slot(const Piece& piece) const noexcept;
  void map_parameters_to_shards();
  void add_to_piece(std::size_t parameter,
                    std::size_t shard,
                    std::size_t first_element,
                    std::size_t element_count);
  void begin(const Command& command);
  Status ready(const Command& command);
  Status take_over(const Command& command, const Piece& piece);
  Status send_early();
  Status finish(const Command& command);
  Status leave_out(std::size_t parameter);
  Status write_footer();
  Result<bool> collect_copies(TimePoint now);
  Status record_pieces(std::size_t parameter);
  Status arrive(const Piece& piece, TimePoint now);
  std::size_t chunk_of(std::size_t shard) const noexcept;
  void check_finite(const Piece& piece);
  Status launch(std::size_t chunk, TimePoint now);
  Status launch_run(std::size_t chunk, std::size_t first, std::size_t count, TimePoint now);
  Status flush(TimePoint now);
  Result<bool> collect_results(TimePoint now);
  void shard_home(const spi::ExchangeEvent& event, TimePoint now);
  void account(const spi::CodedFacts& facts, std::size_t chunk);
  void end_if_done(TimePoint now);
  std::string first_parameters(std::size_t chunk, std::size_t shard) const;
  std::uint64_t samples_of(Rule rule, bool is_footer) const noexcept;

  StepperParts parts_;
  std::vector<ParameterState> parameters_;
  std::vector<ShardState> shards_;
  std::vector<ChunkState> chunks_;
  std::vector<std::uint32_t> expected_remaining_;  ///< by shard: parameters that it overlaps
  std::vector<std::uint32_t>
      first_in_shard_;                  ///< by shard: place in layout.order of its first parameter
  std::vector<std::uint32_t> partial_;  ///< chunks with ready shards that have not left
  std::vector<Piece> pieces_;           ///< of all parameters
  std::vector<std::uint32_t> copying_;  ///< pieces on their way into the arena, in order
  std::size_t copying_first_ = 0;
  FooterCode footer_code_;
  std::vector<float> footer_values_;
  schedule::Plan plan_;
  bool is_coded_ = false;  ///< the plan has chunks with a codec
  std::vector<std::uint32_t> expected_order_;
  std::vector<std::uint32_t> seen_order_;
  std::uint32_t seen_ = 0;

  Command begun_;
  bool step_open_ = false;
  bool finishing_ = false;
  // Of a command that is tried again:
  bool taking_ = false;  ///< it was begun
  std::size_t pieces_taken_ = 0;
  bool piece_posted_ = false;  ///< the next one has been posted, but not recorded
  bool accumulates_ = false;   ///< an earlier backward pass has left something there
  std::size_t home_ = 0;
  std::size_t released_ = 0;
  std::size_t in_flight_ = 0;  ///< shards that were submitted and are not home
  TimePoint busy_since_{};
  spi::TransportCounters counters_at_begin_;
  double cpu_at_begin_ = 0;

  // Declared last, so that it ends first: its work names events and the footer's values.
  std::unique_ptr<spi::Stream> stream_;
};

}  // namespace stretto::engine

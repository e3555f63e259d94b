// SPDX-License-Identifier: Apache-2.0

// PowerSGD (Vogels et al. 2019): a matrix M of a rows and b columns is taken for the product of two
// thin ones, found by one step of the power method from where the last step has ended.
//
//   M = values + factor * residual
//   round 0:  P = M Q        [a x r], averaged over the ranks, then made orthonormal
//   round 1:  Q = M^T P      [b x r], averaged over the ranks
//   result = P Q^T;   left = M - P Q^T with this rank's own Q
//
// P and Q travel as float32, column after column, and exactly: the owner of a segment loses nothing
// and needs no residual.  Since the mean of P Q^T over the ranks is P times the mean of Q, what the
// ranks have left is, on the weighted average, what the result lacks.
//
//   state    Q, each column scaled by a power of two
//   scratch  P, then the sum of squares of the values, which round 0 sees and round 1 reports
#include "codec/powersgd.hpp"

#include "kernels/low_rank.hpp"

#include <charconv>
#include <cstring>
#include <string>
#include <utility>

namespace stretto::codec {
namespace {

using kernels::LowRankShape;

constexpr std::size_t kDefaultRank = 4;
constexpr std::size_t kNoteFloats = sizeof(double) / sizeof(float);

/// Threading: immutable.
class PowerSgdCodec final : public spi::Codec {
 public:
  PowerSgdCodec(spi::CodecTraits traits, std::size_t rank)
      : traits_(std::move(traits)), rank_(rank) {}

  const spi::CodecTraits& traits() const noexcept override { return traits_; }
  bool suits(const spi::CodecSegment& segment) const noexcept override;
  std::size_t most_wire_bytes(const spi::CodecSegment& segment,
                              unsigned round) const noexcept override {
    return sum_floats(segment, round) * sizeof(float);
  }
  std::size_t sum_floats(const spi::CodecSegment& segment, unsigned round) const noexcept override {
    const LowRankShape shape = shape_of(segment);
    return rank_ * (round == 0 ? shape.rows : shape.columns);
  }
  std::size_t state_floats(const spi::CodecSegment& segment) const noexcept override {
    return rank_ * segment.row_elements;
  }
  std::size_t scratch_floats(const spi::CodecSegment& segment) const noexcept override {
    return rank_ * shape_of(segment).rows + kNoteFloats;
  }
  Result<spi::Encoding> encode(const spi::CodecSegment& segment,
                               const spi::CodecRound& round,
                               std::span<const std::byte> values,
                               const spi::CodecMemory& memory,
                               std::span<std::byte> wire) const override;
  Status absorb(const spi::CodecSegment& segment,
                const spi::CodecRound& round,
                std::span<const std::byte> wire,
                float weight,
                std::span<float> sums) const override;
  Result<spi::Encoding> conclude(const spi::CodecSegment& segment,
                                 const spi::CodecRound& round,
                                 std::span<float> sums,
                                 float scale,
                                 const spi::CodecMemory& memory,
                                 std::span<std::byte> wire) const override;
  Status decode(const spi::CodecSegment& segment,
                const spi::CodecRound& round,
                std::span<const std::byte> wire,
                const spi::CodecMemory& memory,
                std::span<std::byte> result) const override;
  Status resolve(const spi::CodecSegment& segment,
                 const spi::CodecRound& round,
                 std::span<float> sums,
                 float scale,
                 const spi::CodecMemory& memory,
                 std::span<std::byte> result) const override;

 private:
  LowRankShape shape_of(const spi::CodecSegment& segment) const noexcept {
    const std::size_t columns = segment.row_elements;
    return {columns == 0 ? 0 : segment.element_count / columns, columns, rank_};
  }
  Status wrong_length(const char* what, std::size_t is, std::size_t wanted) const;
  Status check(const spi::CodecSegment& segment, const spi::CodecRound& round) const;
  Status check_wire(const spi::CodecSegment& segment,
                    const spi::CodecRound& round,
                    std::span<const std::byte> wire) const;
  Status check_result(const spi::CodecSegment& segment,
                      const spi::CodecRound& round,
                      std::span<std::byte> result) const;
  void take_mean(const spi::CodecSegment& segment,
                 const spi::CodecRound& round,
                 const std::byte* mean,
                 const spi::CodecMemory& memory,
                 std::span<std::byte> result) const;

  spi::CodecTraits traits_;
  std::size_t rank_;
};

bool PowerSgdCodec::suits(const spi::CodecSegment& segment) const noexcept {
  const LowRankShape shape = shape_of(segment);
  // A matrix with as few rows or columns as the rank never comes to half.
  return shape.rows * shape.columns == segment.element_count &&
         2 * rank_ * (shape.rows + shape.columns) < segment.element_count;
}

Status PowerSgdCodec::wrong_length(const char* what, std::size_t is, std::size_t wanted) const {
  return {StatusCode::kInvalidArgument,
          "codec " + traits_.name + ": " + what + " of " + std::to_string(is) + " instead of " +
              std::to_string(wanted)};
}

Status PowerSgdCodec::check(const spi::CodecSegment& segment, const spi::CodecRound& round) const {
  if (round.round >= traits_.rounds) {
    return {StatusCode::kInvalidArgument, "codec " + traits_.name + " has two rounds"};
  }
  if (segment.row_elements == 0 || segment.element_count % segment.row_elements != 0) {
    return {StatusCode::kInvalidArgument,
            "codec " + traits_.name + " encodes matrices; " +
                std::to_string(segment.element_count) + " elements are none of rows of " +
                std::to_string(segment.row_elements)};
  }
  return {};
}

Status PowerSgdCodec::check_wire(const spi::CodecSegment& segment,
                                 const spi::CodecRound& round,
                                 std::span<const std::byte> wire) const {
  STRETTO_TRY(check(segment, round));
  const std::size_t bytes = most_wire_bytes(segment, round.round);
  if (wire.size() != bytes) {
    return {StatusCode::kCorruptWire,
            "a wire of codec " + traits_.name + " has " + std::to_string(wire.size()) +
                " bytes instead of " + std::to_string(bytes)};
  }
  if (!kernels::is_factor(wire.data(), bytes / sizeof(float))) {
    return {StatusCode::kCorruptWire,
            "a wire of codec " + traits_.name + " has numbers that no encoder writes"};
  }
  return {};
}

Status PowerSgdCodec::check_result(const spi::CodecSegment& segment,
                                   const spi::CodecRound& round,
                                   std::span<std::byte> result) const {
  const std::size_t bytes = segment.element_count * size_of(segment.dtype);
  const bool last = round.round + 1 == traits_.rounds;
  return last && result.size() != bytes ? wrong_length("a result", result.size(), bytes) : Status();
}

Result<spi::Encoding> PowerSgdCodec::encode(const spi::CodecSegment& segment,
                                            const spi::CodecRound& round,
                                            std::span<const std::byte> values,
                                            const spi::CodecMemory& memory,
                                            std::span<std::byte> wire) const {
  STRETTO_TRY(check(segment, round));
  const std::size_t bytes = segment.element_count * size_of(segment.dtype);
  if (values.size() != bytes) {
    return fail(wrong_length("values", values.size(), bytes));
  }
  const std::size_t wire_bytes = most_wire_bytes(segment, round.round);
  if (wire.size() < wire_bytes) {
    return fail(wrong_length("a wire", wire.size(), wire_bytes));
  }
  const LowRankShape shape = shape_of(segment);
  const kernels::LowRankSource source{segment.dtype, values.data(), memory.residual, memory.factor};
  float* const note = memory.scratch + rank_ * shape.rows;
  spi::Encoding done;
  done.wire_bytes = wire_bytes;
  if (round.round == 0) {
    // Where the next state will be, there is room for the one that this step begins with.
    kernels::begin_directions(shape, segment.seed, memory.state, memory.next_state);
    const kernels::ProjectFacts facts =
        kernels::project(shape, source, memory.next_state, wire.data(), memory.left);
    std::memcpy(note, &facts.value_squares, sizeof facts.value_squares);
    done.refused = facts.refused;
    return done;
  }
  std::memcpy(&done.value_squares, note, sizeof done.value_squares);
  if (memory.left == nullptr) {
    kernels::back_project(shape, source, memory.scratch, wire.data());
  } else {
    // Round 0 has left M there: one array to read instead of two, and nothing to refuse.
    done.left_squares =
        kernels::back_project_and_leave(shape, memory.left, memory.scratch, wire.data());
  }
  return done;
}

Status PowerSgdCodec::absorb(const spi::CodecSegment& segment,
                             const spi::CodecRound& round,
                             std::span<const std::byte> wire,
                             float weight,
                             std::span<float> sums) const {
  STRETTO_TRY(check_wire(segment, round, wire));
  const std::size_t floats = sum_floats(segment, round.round);
  if (sums.size() != floats) {
    return wrong_length("sums", sums.size(), floats);
  }
  kernels::absorb_factor(wire.data(), floats, weight, sums.data());
  return {};
}

Result<spi::Encoding> PowerSgdCodec::conclude(const spi::CodecSegment& segment,
                                              const spi::CodecRound& round,
                                              std::span<float> sums,
                                              float scale,
                                              const spi::CodecMemory& /*memory*/,
                                              std::span<std::byte> wire) const {
  STRETTO_TRY(check(segment, round));
  const std::size_t floats = sum_floats(segment, round.round);
  if (sums.size() != floats) {
    return fail(wrong_length("sums", sums.size(), floats));
  }
  if (wire.size() < floats * sizeof(float)) {
    return fail(wrong_length("a wire", wire.size(), floats * sizeof(float)));
  }
  kernels::scale_factor(sums.data(), floats, scale, wire.data());
  spi::Encoding done;
  done.wire_bytes = floats * sizeof(float);
  return done;
}

/// What decode and resolve have in common.
void PowerSgdCodec::take_mean(const spi::CodecSegment& segment,
                              const spi::CodecRound& round,
                              const std::byte* mean,
                              const spi::CodecMemory& memory,
                              std::span<std::byte> result) const {
  const LowRankShape shape = shape_of(segment);
  if (segment.element_count == 0) {
    return;
  }
  if (round.round == 0) {
    std::memcpy(memory.scratch, mean, rank_ * shape.rows * sizeof(float));
    kernels::orthonormalize(shape, memory.scratch);
    return;
  }
  kernels::keep_directions(shape, mean, memory.next_state);
  kernels::multiply(shape, memory.scratch, mean, segment.dtype, result.data());
}

Status PowerSgdCodec::decode(const spi::CodecSegment& segment,
                             const spi::CodecRound& round,
                             std::span<const std::byte> wire,
                             const spi::CodecMemory& memory,
                             std::span<std::byte> result) const {
  STRETTO_TRY(check_wire(segment, round, wire));
  STRETTO_TRY(check_result(segment, round, result));
  take_mean(segment, round, wire.data(), memory, result);
  return {};
}

Status PowerSgdCodec::resolve(const spi::CodecSegment& segment,
                              const spi::CodecRound& round,
                              std::span<float> sums,
                              float scale,
                              const spi::CodecMemory& memory,
                              std::span<std::byte> result) const {
  STRETTO_TRY(check(segment, round));
  STRETTO_TRY(check_result(segment, round, result));
  const std::size_t floats = sum_floats(segment, round.round);
  if (sums.size() != floats) {
    return wrong_length("sums", sums.size(), floats);
  }
  const std::span<std::byte> mean = std::as_writable_bytes(sums);
  kernels::scale_factor(sums.data(), floats, scale, mean.data());
  take_mean(segment, round, mean.data(), memory, result);
  return {};
}

Result<std::size_t> rank_of(const CodecName& name) {
  const std::string& text = name.argument();
  if (text.empty()) {
    return kDefaultRank;
  }
  std::size_t rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc() || end != text.data() + text.size() || rank < 1 ||
      rank > kernels::kMostRank) {
    return name.wrong("its argument is a rank from 1 to " + std::to_string(kernels::kMostRank) +
                      ", not " + text);
  }
  return rank;
}

}  // namespace

Result<std::shared_ptr<const spi::Codec>> make_powersgd_codec(const CodecName& name) {
  STRETTO_TRY(name.allow_options({"feedback"}));
  STRETTO_TRY_ASSIGN(const std::size_t rank, rank_of(name));
  spi::CodecTraits traits;
  traits.name = name.text();
  traits.id = 9;
  traits.error = spi::CodecError::kBiased;
  STRETTO_TRY_ASSIGN(traits.feedback, name.switch_option("feedback", true));
  traits.whole_parameter = true;
  traits.rounds = 2;
  return std::make_shared<const PowerSgdCodec>(std::move(traits), rank);
}

}  // namespace stretto::codec

// SPDX-License-Identifier: Apache-2.0

// Top-k.  With x = value + factor * residual (or what a momentum makes of the value), a sender says
// the k elements of largest |x| and leaves the others; the owner says the k largest of the mean,
// with what an earlier step has left of it, and leaves the others.
//
// With a momentum m, clipping, and k as it falls in the warm-up (Lin et al. 2018, algorithms 1 to
// 4):
//   g = value * min(1, C ranks^-1/2 / |value|);  u = m u + g;  v = v + u;
//   send v where |v| is largest;  there v = 0 and u = 0.
// v is the residual, u the state.  A factor scales v, which is a debt, and not u, which is a mean.
#include "codec/topk.hpp"

#include "codec/sparse.hpp"
#include "codec/sparse_wire.hpp"
#include "kernels/scatter.hpp"
#include "kernels/select.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace stretto::codec {
namespace {

struct TopkOptions {
  double share = 0.01;
  kernels::MomentumRule rule;
  bool moves = false;
  double clip = 0;  ///< 0: not
  std::uint64_t warmup = 0;
};

constexpr std::array kWarmupShares{0.25, 0.0625, 0.015625, 0.004};

double share_at(const TopkOptions& options, std::uint64_t step) noexcept {
  if (step >= options.warmup) {
    return options.share;
  }
  const auto part =
      static_cast<std::size_t>(static_cast<double>(step) / static_cast<double>(options.warmup) *
                               static_cast<double>(kWarmupShares.size()));
  return std::max(options.share, kWarmupShares[std::min(part, kWarmupShares.size() - 1)]);
}

/// Threading: immutable.
class TopkCodec final : public spi::Codec {
 public:
  TopkCodec(spi::CodecTraits traits, TopkOptions options)
      : traits_(std::move(traits)), options_(options) {}

  const spi::CodecTraits& traits() const noexcept override { return traits_; }
  std::size_t most_wire_bytes(const spi::CodecSegment& segment,
                              unsigned /*round*/) const noexcept override {
    const double most = options_.warmup > 0 ? share_at(options_, 0) : options_.share;
    const std::size_t n = segment.element_count;
    return most_sparse_bytes(n, count_of_share(most, n));
  }
  std::size_t state_floats(const spi::CodecSegment& segment) const noexcept override {
    return options_.moves ? segment.element_count : 0;
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
  std::size_t count_at(const spi::CodecSegment& segment,
                       const spi::CodecRound& round) const noexcept {
    return count_of_share(share_at(options_, round.step), segment.element_count);
  }
  float clip_scale(const kernels::SelectTask& task, std::uint32_t ranks) const noexcept;
  Result<spi::Encoding> run(const spi::CodecSegment& segment,
                            const spi::CodecRound& round,
                            kernels::SelectTask task,
                            const spi::CodecMemory& memory,
                            std::span<std::byte> wire) const;

  spi::CodecTraits traits_;
  TopkOptions options_;
};

/// Selects and writes; the task has values, scale and momentum.
Result<spi::Encoding> TopkCodec::run(const spi::CodecSegment& segment,
                                     const spi::CodecRound& round,
                                     kernels::SelectTask task,
                                     const spi::CodecMemory& memory,
                                     std::span<std::byte> wire) const {
  STRETTO_TRY(check_room(traits_.name, wire.size(), most_wire_bytes(segment, round.round)));
  task.element_count = segment.element_count;
  task.residual = memory.residual;
  task.factor = memory.factor;
  task.left = memory.left;
  const std::size_t k = count_at(segment, round);
  const std::size_t room = kernels::select_room(segment.element_count, k);
  SparseRoom& found = sparse_room(room);
  const kernels::SelectFacts facts = kernels::select_largest(
      task, k, step_seed(segment, round), {found.index.data(), found.value.data(), room});
  const SparseElements elements{{found.index.data(), facts.selected},
                                {found.value.data(), facts.selected}};
  return spi::Encoding{write_sparse(segment.element_count, elements, wire.data()),
                       facts.refused,
                       facts.value_squares,
                       facts.left_squares};
}

float TopkCodec::clip_scale(const kernels::SelectTask& task, std::uint32_t ranks) const noexcept {
  const double norm =
      std::sqrt(kernels::measure(task.dtype, task.values, task.element_count).value_squares);
  const double most = options_.clip / std::sqrt(static_cast<double>(std::max(1U, ranks)));
  return norm > most ? static_cast<float>(most / norm) : 1.0F;
}

Result<spi::Encoding> TopkCodec::encode(const spi::CodecSegment& segment,
                                        const spi::CodecRound& round,
                                        std::span<const std::byte> values,
                                        const spi::CodecMemory& memory,
                                        std::span<std::byte> wire) const {
  STRETTO_TRY(check_call(traits_.name, segment, round));
  const std::size_t bytes = segment.element_count * size_of(segment.dtype);
  STRETTO_TRY(check_length(traits_.name, "values", values.size(), bytes));
  kernels::SelectTask task;
  task.dtype = segment.dtype;
  task.values = values.data();
  task.element_count = segment.element_count;
  if (options_.moves) {
    if (memory.state == nullptr || memory.next_state == nullptr) {
      return fail(StatusCode::kInvalidArgument,
                  "codec " + traits_.name + " has a momentum; give it memory for its state");
    }
    task.state = memory.state;
    task.next_state = memory.next_state;
    task.rule = options_.rule;
  }
  if (options_.clip > 0) {
    task.scale = clip_scale(task, round.ranks);
  }
  return run(segment, round, task, memory, wire);
}

Result<spi::Encoding> TopkCodec::conclude(const spi::CodecSegment& segment,
                                          const spi::CodecRound& round,
                                          std::span<float> sums,
                                          float scale,
                                          const spi::CodecMemory& memory,
                                          std::span<std::byte> wire) const {
  STRETTO_TRY(check_call(traits_.name, segment, round));
  STRETTO_TRY(check_length(traits_.name, "sums", sums.size(), segment.element_count));
  kernels::SelectTask task;
  task.values = reinterpret_cast<const std::byte*>(sums.data());
  task.scale = scale;
  return run(segment, round, task, memory, wire);
}

Status TopkCodec::absorb(const spi::CodecSegment& segment,
                         const spi::CodecRound& round,
                         std::span<const std::byte> wire,
                         float weight,
                         std::span<float> sums) const {
  STRETTO_TRY(check_call(traits_.name, segment, round));
  STRETTO_TRY(check_length(traits_.name, "sums", sums.size(), segment.element_count));
  STRETTO_TRY_ASSIGN(
      const SparseElements elements,
      read_sparse(traits_.name, segment.element_count, count_at(segment, round), wire));
  kernels::scatter_add(elements.index, elements.value, weight, sums.data());
  return {};
}

Status TopkCodec::decode(const spi::CodecSegment& segment,
                         const spi::CodecRound& round,
                         std::span<const std::byte> wire,
                         const spi::CodecMemory& /*memory*/,
                         std::span<std::byte> result) const {
  STRETTO_TRY(check_call(traits_.name, segment, round));
  const std::size_t bytes = segment.element_count * size_of(segment.dtype);
  STRETTO_TRY(check_length(traits_.name, "a result", result.size(), bytes));
  STRETTO_TRY_ASSIGN(
      const SparseElements elements,
      read_sparse(traits_.name, segment.element_count, count_at(segment, round), wire));
  kernels::scatter(
      elements.index, elements.value, segment.dtype, segment.element_count, result.data());
  return {};
}

Status TopkCodec::resolve(const spi::CodecSegment& segment,
                          const spi::CodecRound& round,
                          std::span<float> sums,
                          float scale,
                          const spi::CodecMemory& /*memory*/,
                          std::span<std::byte> result) const {
  STRETTO_TRY(check_call(traits_.name, segment, round));
  const std::size_t n = segment.element_count;
  STRETTO_TRY(check_length(traits_.name, "sums", sums.size(), n));
  STRETTO_TRY(check_length(traits_.name, "a result", result.size(), n * size_of(segment.dtype)));
  kernels::scale_into(sums, scale, segment.dtype, result.data());
  return {};
}

Result<TopkOptions> read_options(const CodecName& name) {
  STRETTO_TRY(name.allow_options({"feedback", "momentum", "nesterov", "clip", "warmup"}));
  TopkOptions options;
  STRETTO_TRY_ASSIGN(options.share, name.share_argument(options.share));
  constexpr double kMostMomentum = 0.9999;
  constexpr double kMostClip = 1e9;
  constexpr double kMostSteps = 1e9;
  STRETTO_TRY_ASSIGN(const double momentum, name.number_option("momentum", 0, 0, kMostMomentum));
  STRETTO_TRY_ASSIGN(options.clip, name.number_option("clip", 0, 0, kMostClip));
  STRETTO_TRY_ASSIGN(const double steps, name.number_option("warmup", 0, 0, kMostSteps));
  STRETTO_TRY_ASSIGN(options.rule.nesterov, name.switch_option("nesterov", false));
  options.rule.momentum = static_cast<float>(momentum);
  options.moves = momentum > 0;
  options.warmup = static_cast<std::uint64_t>(steps);
  if (steps != std::floor(steps)) {
    return name.wrong("warmup is a number of steps, and whole");
  }
  if (options.rule.nesterov && !options.moves) {
    return name.wrong("nesterov=on says how a momentum works; add momentum=0.9, or leave it out");
  }
  return options;
}

}  // namespace

Result<std::shared_ptr<const spi::Codec>> make_topk_codec(const CodecName& name) {
  STRETTO_TRY_ASSIGN(const TopkOptions options, read_options(name));
  spi::CodecTraits traits;
  traits.name = name.text();
  traits.id = 7;
  traits.error = spi::CodecError::kBiased;
  traits.fixed_length = false;
  traits.segment_elements = std::size_t{256} << 10U;
  traits.owns_momentum = options.moves;
  STRETTO_TRY_ASSIGN(traits.feedback, name.switch_option("feedback", true));
  if (options.moves && !traits.feedback) {
    return name.wrong("momentum adds up in the residual, which feedback=off takes away; drop one");
  }
  return std::make_shared<const TopkCodec>(std::move(traits), options);
}

}  // namespace stretto::codec

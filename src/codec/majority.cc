// SPDX-License-Identifier: Apache-2.0

// signmaj.  A wire is the mean magnitude m of the segment (float32; not with a rate), then one bit
// for each element.  Sums are the votes of each element, +1 or -1, then the sum of all m, then how
// many have voted; with none, the result is zero.
#include "codec/majority.hpp"

#include "codec/chance.hpp"
#include "codec/checks.hpp"
#include "kernels/coding.hpp"
#include "kernels/coding_arithmetic.hpp"
#include "kernels/kernels.hpp"

#include <cmath>
#include <cstring>
#include <string>
#include <utility>

namespace stretto::codec {
namespace {

using kernels::WireFormat;

/// Whoever counts the votes throws the same coins.
std::uint32_t majority_seed(const spi::CodecSegment& segment,
                            const spi::CodecRound& round) noexcept {
  return chance_seed(segment, round.step, round.ranks);
}

/// Threading: immutable.
class MajorityCodec final : public spi::Codec {
 public:
  /// rate: what a result is; 0: the mean magnitude.
  MajorityCodec(spi::CodecTraits traits, float rate) : traits_(std::move(traits)), rate_(rate) {}

  const spi::CodecTraits& traits() const noexcept override { return traits_; }
  std::size_t most_wire_bytes(const spi::CodecSegment& segment,
                              unsigned /*round*/) const noexcept override {
    const std::size_t n = segment.element_count;
    return n == 0 ? 0 : head_bytes() + kernels::wire_bytes(WireFormat::kVote, n);
  }
  std::size_t sum_floats(const spi::CodecSegment& segment,
                         unsigned /*round*/) const noexcept override {
    return segment.element_count == 0 ? 0 : segment.element_count + 2;
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
  std::size_t head_bytes() const noexcept { return rate_ == 0 ? sizeof(float) : 0; }
  /// What a wire's votes are worth.
  float worth_of(std::span<const std::byte> wire) const noexcept;
  /// What the votes that were summed are worth.
  float worth_of_all(std::span<const float> sums) const noexcept;
  /// The majority's sign of each element, to a payload of bits.
  kernels::EncodeFacts count_votes(const spi::CodecSegment& segment,
                                   const spi::CodecRound& round,
                                   std::span<const float> sums,
                                   std::byte* bits) const noexcept;
  Status check_wire(const spi::CodecSegment& segment, std::span<const std::byte> wire) const;

  spi::CodecTraits traits_;
  float rate_;
};

float MajorityCodec::worth_of(std::span<const std::byte> wire) const noexcept {
  float worth = rate_;
  if (rate_ == 0) {
    std::memcpy(&worth, wire.data(), sizeof worth);
  }
  return worth;
}

float MajorityCodec::worth_of_all(std::span<const float> sums) const noexcept {
  const float total = sums[sums.size() - 2];
  const float votes = sums[sums.size() - 1];
  if (votes == 0) {
    return 0;
  }
  return rate_ == 0 ? total / votes : rate_;
}

kernels::EncodeFacts MajorityCodec::count_votes(const spi::CodecSegment& segment,
                                                const spi::CodecRound& round,
                                                std::span<const float> sums,
                                                std::byte* bits) const noexcept {
  kernels::EncodeTask task;
  task.element_count = segment.element_count;
  task.values = reinterpret_cast<const std::byte*>(sums.data());
  task.wire = bits;
  task.seed = majority_seed(segment, round);
  return kernels::encode(WireFormat::kVote, task);
}

Status MajorityCodec::check_wire(const spi::CodecSegment& segment,
                                 std::span<const std::byte> wire) const {
  STRETTO_TRY(check_wire_length(traits_, wire.size(), most_wire_bytes(segment, 0)));
  const std::size_t n = segment.element_count;
  if (n == 0) {
    return {};
  }
  const float worth = worth_of(wire);
  if (!(worth >= 0) || kernels::beyond_coding_limit(worth)) {
    return corrupt_wire(traits_, "says that a vote is worth " + std::to_string(worth));
  }
  return kernels::is_wire(WireFormat::kVote, wire.data() + head_bytes(), n)
             ? Status()
             : corrupt_wire(traits_, "goes on behind its last vote");
}

Result<spi::Encoding> MajorityCodec::encode(const spi::CodecSegment& segment,
                                            const spi::CodecRound& round,
                                            std::span<const std::byte> values,
                                            const spi::CodecMemory& memory,
                                            std::span<std::byte> wire) const {
  STRETTO_TRY(check_round(traits_, round));
  const std::size_t n = segment.element_count;
  STRETTO_TRY(check_length(traits_, "values", values.size(), n * size_of(segment.dtype)));
  STRETTO_TRY(check_room(traits_, wire.size(), most_wire_bytes(segment, 0)));
  if (memory.residual != nullptr) {
    return fail(StatusCode::kInvalidArgument, "codec " + traits_.name + " keeps no residual");
  }
  if (n == 0) {
    return spi::Encoding();
  }
  kernels::EncodeTask task;
  task.dtype = segment.dtype;
  task.values = values.data();
  task.element_count = n;
  task.wire = wire.data() + head_bytes();
  task.seed = chance_seed(segment, round.step, round.source);
  const kernels::EncodeFacts facts = kernels::encode(WireFormat::kVote, task);
  const auto mean = static_cast<float>(facts.magnitudes / static_cast<double>(n));
  std::memcpy(wire.data(), &mean, head_bytes());
  return spi::Encoding{most_wire_bytes(segment, 0), facts.refused, facts.value_squares, 0};
}

Status MajorityCodec::absorb(const spi::CodecSegment& segment,
                             const spi::CodecRound& round,
                             std::span<const std::byte> wire,
                             float weight,
                             std::span<float> sums) const {
  STRETTO_TRY(check_round(traits_, round));
  STRETTO_TRY(check_length(traits_, "sums", sums.size(), sum_floats(segment, 0)));
  STRETTO_TRY(check_wire(segment, wire));
  const std::size_t n = segment.element_count;
  if (n == 0 || !(weight > 0)) {
    return {};
  }
  // A vote is one vote, however many samples stand behind it.
  kernels::absorb(WireFormat::kVote, wire.data() + head_bytes(), n, 1, sums.data());
  sums[n] += worth_of(wire);
  sums[n + 1] += 1;
  return {};
}

Result<spi::Encoding> MajorityCodec::conclude(const spi::CodecSegment& segment,
                                              const spi::CodecRound& round,
                                              std::span<float> sums,
                                              float /*scale*/,
                                              const spi::CodecMemory& /*memory*/,
                                              std::span<std::byte> wire) const {
  STRETTO_TRY(check_round(traits_, round));
  STRETTO_TRY(check_length(traits_, "sums", sums.size(), sum_floats(segment, 0)));
  STRETTO_TRY(check_room(traits_, wire.size(), most_wire_bytes(segment, 0)));
  if (segment.element_count == 0) {
    return spi::Encoding();
  }
  const float worth = worth_of_all(sums);
  const auto facts = count_votes(segment, round, sums, wire.data() + head_bytes());
  std::memcpy(wire.data(), &worth, head_bytes());
  const double squares = static_cast<double>(worth) * static_cast<double>(worth);
  return spi::Encoding{most_wire_bytes(segment, 0),
                       facts.refused,
                       squares * static_cast<double>(segment.element_count),
                       0};
}

Status MajorityCodec::decode(const spi::CodecSegment& segment,
                             const spi::CodecRound& round,
                             std::span<const std::byte> wire,
                             const spi::CodecMemory& /*memory*/,
                             std::span<std::byte> result) const {
  STRETTO_TRY(check_round(traits_, round));
  const std::size_t n = segment.element_count;
  STRETTO_TRY(check_length(traits_, "a result", result.size(), n * size_of(segment.dtype)));
  STRETTO_TRY(check_wire(segment, wire));
  if (n > 0) {
    kernels::decode(WireFormat::kVote,
                    wire.data() + head_bytes(),
                    n,
                    worth_of(wire),
                    segment.dtype,
                    result.data());
  }
  return {};
}

Status MajorityCodec::resolve(const spi::CodecSegment& segment,
                              const spi::CodecRound& round,
                              std::span<float> sums,
                              float /*scale*/,
                              const spi::CodecMemory& /*memory*/,
                              std::span<std::byte> result) const {
  STRETTO_TRY(check_round(traits_, round));
  const std::size_t n = segment.element_count;
  STRETTO_TRY(check_length(traits_, "sums", sums.size(), sum_floats(segment, 0)));
  STRETTO_TRY(check_length(traits_, "a result", result.size(), n * size_of(segment.dtype)));
  if (n == 0) {
    return {};
  }
  float worth = worth_of_all(sums);
  worth = segment.dtype == DType::kFloat16 ? kernels::within_half(worth) : worth;
  const std::uint32_t seed = majority_seed(segment, round);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t coin = sums[i] == 0 ? kernels::chance(seed, i) : 0;
    sums[i] = kernels::vote_of(sums[i], coin) != 0 ? -worth : worth;
  }
  const auto* values = reinterpret_cast<const std::byte*>(sums.data());
  kernels::cast(segment.dtype, result.data(), DType::kFloat32, values, n);
  return {};
}

}  // namespace

Result<std::shared_ptr<const spi::Codec>> make_majority_codec(const CodecName& name) {
  if (!name.argument().empty()) {
    return name.wrong("it takes no argument; what a vote is worth is rate=X");
  }
  if (name.option("feedback")) {
    return name.wrong("there is no error feedback for it: a majority has nothing that it leaves");
  }
  STRETTO_TRY(name.allow_options({"rate"}));
  STRETTO_TRY_ASSIGN(const double rate, name.number_option("rate", 0, 0, 1e18));
  spi::CodecTraits traits;
  traits.name = name.text();
  traits.id = 6;
  traits.error = spi::CodecError::kBiased;
  const auto as_float = static_cast<float>(rate);
  if (name.option("rate") && !std::isnormal(as_float)) {
    return name.wrong("rate is above 0, not " + std::string(*name.option("rate")));
  }
  return std::make_shared<const MajorityCodec>(std::move(traits), as_float);
}

}  // namespace stretto::codec

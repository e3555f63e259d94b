// SPDX-License-Identifier: Apache-2.0

// The codecs whose wire says how large every element is: fp16, bf16, int8, int4, sign.  What they
// compute stands in kernels/coding_arithmetic.hpp.
#include "codec/elementwise.hpp"

#include "codec/chance.hpp"
#include "codec/checks.hpp"
#include "kernels/arithmetic.hpp"
#include "kernels/coding.hpp"
#include "kernels/kernels.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

namespace stretto::codec {
namespace {

using kernels::WireFormat;

/// Threading: immutable.
class ElementwiseCodec final : public spi::Codec {
 public:
  /// random: levels by chance, unbiased.
  ElementwiseCodec(spi::CodecTraits traits, WireFormat format, bool random)
      : traits_(std::move(traits)), format_(format), random_(random) {}

  const spi::CodecTraits& traits() const noexcept override { return traits_; }
  std::size_t most_wire_bytes(const spi::CodecSegment& segment,
                              unsigned /*round*/) const noexcept override {
    return kernels::wire_bytes(format_, segment.element_count);
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
  spi::Encoding run(const spi::CodecSegment& segment,
                    const spi::CodecRound& round,
                    kernels::EncodeTask task,
                    const spi::CodecMemory& memory,
                    std::span<std::byte> wire) const;
  Status check_wire(const spi::CodecSegment& segment, std::span<const std::byte> wire) const;

  spi::CodecTraits traits_;
  WireFormat format_;
  bool random_;
};

/// A wire of the right length whose every value is a number below the limit, or nothing.
Status ElementwiseCodec::check_wire(const spi::CodecSegment& segment,
                                    std::span<const std::byte> wire) const {
  const std::size_t n = segment.element_count;
  STRETTO_TRY(check_wire_length(traits_, wire.size(), kernels::wire_bytes(format_, n)));
  return kernels::is_wire(format_, wire.data(), n)
             ? Status()
             : corrupt_wire(traits_, "says what no encoder writes");
}

spi::Encoding ElementwiseCodec::run(const spi::CodecSegment& segment,
                                    const spi::CodecRound& round,
                                    kernels::EncodeTask task,
                                    const spi::CodecMemory& memory,
                                    std::span<std::byte> wire) const {
  task.element_count = segment.element_count;
  task.residual = memory.residual;
  task.factor = memory.factor;
  task.left = memory.left;
  task.wire = wire.data();
  task.random = random_;
  task.seed = chance_seed(segment, round.step, round.source);
  const kernels::EncodeFacts facts = kernels::encode(format_, task);
  return {kernels::wire_bytes(format_, segment.element_count),
          facts.refused,
          facts.value_squares,
          facts.left_squares};
}

Result<spi::Encoding> ElementwiseCodec::encode(const spi::CodecSegment& segment,
                                               const spi::CodecRound& round,
                                               std::span<const std::byte> values,
                                               const spi::CodecMemory& memory,
                                               std::span<std::byte> wire) const {
  STRETTO_TRY(check_round(traits_, round));
  STRETTO_TRY(check_length(
      traits_, "values", values.size(), segment.element_count * size_of(segment.dtype)));
  STRETTO_TRY(check_room(traits_, wire.size(), most_wire_bytes(segment, 0)));
  kernels::EncodeTask task;
  task.dtype = segment.dtype;
  task.values = values.data();
  return run(segment, round, task, memory, wire);
}

Status ElementwiseCodec::absorb(const spi::CodecSegment& segment,
                                const spi::CodecRound& round,
                                std::span<const std::byte> wire,
                                float weight,
                                std::span<float> sums) const {
  STRETTO_TRY(check_round(traits_, round));
  STRETTO_TRY(check_length(traits_, "sums", sums.size(), segment.element_count));
  STRETTO_TRY(check_wire(segment, wire));
  kernels::absorb(format_, wire.data(), segment.element_count, weight, sums.data());
  return {};
}

Result<spi::Encoding> ElementwiseCodec::conclude(const spi::CodecSegment& segment,
                                                 const spi::CodecRound& round,
                                                 std::span<float> sums,
                                                 float scale,
                                                 const spi::CodecMemory& memory,
                                                 std::span<std::byte> wire) const {
  STRETTO_TRY(check_round(traits_, round));
  STRETTO_TRY(check_length(traits_, "sums", sums.size(), segment.element_count));
  STRETTO_TRY(check_room(traits_, wire.size(), most_wire_bytes(segment, 0)));
  kernels::EncodeTask task;
  task.values = reinterpret_cast<const std::byte*>(sums.data());
  task.scale = scale;
  return run(segment, round, task, memory, wire);
}

Status ElementwiseCodec::decode(const spi::CodecSegment& segment,
                                const spi::CodecRound& round,
                                std::span<const std::byte> wire,
                                const spi::CodecMemory& /*memory*/,
                                std::span<std::byte> result) const {
  STRETTO_TRY(check_round(traits_, round));
  const std::size_t n = segment.element_count;
  STRETTO_TRY(check_length(traits_, "a result", result.size(), n * size_of(segment.dtype)));
  STRETTO_TRY(check_wire(segment, wire));
  kernels::decode(format_, wire.data(), n, 1, segment.dtype, result.data());
  return {};
}

Status ElementwiseCodec::resolve(const spi::CodecSegment& segment,
                                 const spi::CodecRound& round,
                                 std::span<float> sums,
                                 float scale,
                                 const spi::CodecMemory& /*memory*/,
                                 std::span<std::byte> result) const {
  STRETTO_TRY(check_round(traits_, round));
  const std::size_t n = segment.element_count;
  STRETTO_TRY(check_length(traits_, "sums", sums.size(), n));
  STRETTO_TRY(check_length(traits_, "a result", result.size(), n * size_of(segment.dtype)));
  // As a decoded wire, a mean that is a number stays one.
  const float largest =
      segment.dtype == DType::kFloat16 ? kernels::kHalfFinite : std::numeric_limits<float>::max();
  for (float& sum : sums) {
    sum = std::clamp(sum * scale, -largest, largest);
  }
  kernels::cast(segment.dtype,
                result.data(),
                DType::kFloat32,
                reinterpret_cast<const std::byte*>(sums.data()),
                n);
  return {};
}

struct Kind {
  std::string_view name;
  std::uint8_t id;
  WireFormat format;
  spi::CodecError error;
};

constexpr std::array kKinds{
    Kind{"fp16", 1, WireFormat::kHalf, spi::CodecError::kRounding},
    Kind{"bf16", 2, WireFormat::kBrain, spi::CodecError::kRounding},
    Kind{"int8", 3, WireFormat::kInt8, spi::CodecError::kBiased},
    Kind{"int4", 4, WireFormat::kInt4, spi::CodecError::kBiased},
    Kind{"sign", 5, WireFormat::kSign, spi::CodecError::kBiased},
};

/// Whether levels are chosen by chance.
Result<bool> read_rounding(const CodecName& name) {
  const auto rounding = name.option("rounding");
  if (!rounding || *rounding == "nearest") {
    return false;
  }
  if (*rounding != "stochastic") {
    return name.wrong("rounding is nearest or stochastic, not " + std::string(*rounding));
  }
  return true;
}

}  // namespace

Result<std::shared_ptr<const spi::Codec>> make_elementwise_codec(const CodecName& name) {
  const auto* kind = std::find_if(
      kKinds.begin(), kKinds.end(), [&](const Kind& k) { return k.name == name.kind(); });
  if (kind == kKinds.end()) {
    return name.wrong("there is no such codec");
  }
  if (!name.argument().empty()) {
    return name.wrong("it takes no argument");
  }
  const bool has_levels = kind->format == WireFormat::kInt8 || kind->format == WireFormat::kInt4;
  STRETTO_TRY(has_levels ? name.allow_options({"feedback", "rounding"})
                         : name.allow_options({"feedback"}));
  STRETTO_TRY_ASSIGN(const bool random, read_rounding(name));
  spi::CodecTraits traits;
  traits.name = name.text();
  traits.id = kind->id;
  traits.error = random ? spi::CodecError::kUnbiased : kind->error;
  STRETTO_TRY_ASSIGN(traits.feedback,
                     name.switch_option("feedback", traits.error == spi::CodecError::kBiased));
  return std::make_shared<const ElementwiseCodec>(std::move(traits), kind->format, random);
}

}  // namespace stretto::codec

// SPDX-License-Identifier: Apache-2.0
#include "codec/factory.hpp"
#include "kernels/arithmetic.hpp"
#include "kernels/kernels.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace stretto::codec {
namespace {

std::byte* bytes_of(float* values) noexcept {
  return reinterpret_cast<std::byte*>(values);
}

/// The wire is the values in the segment's dtype.  With a residual, value + residual rounded to
/// that dtype: then a 16-bit segment has something to leave.
///
/// Threading: thread-compatible.
class PlainCodec final : public spi::Codec {
 public:
  explicit PlainCodec(const spi::CodecSegment& segment)
      : segment_(segment), total_(segment.element_count), one_(segment.element_count) {
    traits_.name = "plain";
  }

  const spi::CodecTraits& traits() const noexcept override { return traits_; }
  std::size_t most_wire_bytes(unsigned /*round*/) const noexcept override { return wire_bytes(); }
  Result<spi::Encoding> encode(unsigned round,
                               std::span<const std::byte> values,
                               std::span<float> residual,
                               std::span<std::byte> wire) override;
  Status absorb(unsigned round, std::uint64_t samples, std::span<const std::byte> wire) override;
  Status decode(unsigned round, float scale, std::span<std::byte> result) override;

 private:
  std::size_t wire_bytes() const noexcept {
    return segment_.element_count * size_of(segment_.dtype);
  }
  Status check(unsigned round, std::size_t bytes, const char* what) const;
  void fold_in(std::span<float> residual, std::span<std::byte> wire);

  spi::CodecSegment segment_;
  spi::CodecTraits traits_;
  std::vector<float> total_;
  std::vector<float> one_;  ///< values of one wire, in float32
};

Status PlainCodec::check(unsigned round, std::size_t bytes, const char* what) const {
  if (round != 0) {
    return {StatusCode::kInvalidArgument,
            "the codec plain has one round, not " + std::to_string(round + 1)};
  }
  if (bytes != wire_bytes()) {
    return {StatusCode::kInvalidArgument,
            std::string(what) + " of " + std::to_string(bytes) + " bytes for a segment of " +
                std::to_string(wire_bytes())};
  }
  return {};
}

Result<spi::Encoding> PlainCodec::encode(unsigned round,
                                         std::span<const std::byte> values,
                                         std::span<float> residual,
                                         std::span<std::byte> wire) {
  STRETTO_TRY(check(round, values.size(), "values"));
  if (wire.size() < wire_bytes() ||
      (!residual.empty() && residual.size() != segment_.element_count)) {
    return fail(StatusCode::kInvalidArgument,
                "a wire or a residual of another length than the segment");
  }
  spi::Encoding done{wire_bytes(), 0};
  kernels::copy(segment_.dtype, wire.data(), values.data(), segment_.element_count);
  done.non_finite = kernels::count_non_finite(segment_.dtype, wire.data(), segment_.element_count);
  if (!residual.empty() || done.non_finite > 0) {
    fold_in(residual, wire.first(wire_bytes()));
  }
  return done;
}

/// wire = wire + residual, as near as the dtype comes; residual = what is left.
void PlainCodec::fold_in(std::span<float> residual, std::span<std::byte> wire) {
  const std::size_t n = segment_.element_count;
  kernels::cast(DType::kFloat32, bytes_of(one_.data()), segment_.dtype, wire.data(), n);
  for (std::size_t i = 0; i < n; ++i) {
    const bool finite =
        (kernels::bits_of(one_[i]) & kernels::kExponentMask) != kernels::kExponentMask;
    // What is not finite counts as nothing: it would never leave a residual again.
    one_[i] = (finite ? one_[i] : 0.0F) + (residual.empty() ? 0.0F : residual[i]);
  }
  kernels::cast(segment_.dtype, wire.data(), DType::kFloat32, bytes_of(one_.data()), n);
  for (std::size_t i = 0; i < residual.size(); ++i) {
    residual[i] = one_[i];
  }
  if (!residual.empty()) {
    kernels::cast(DType::kFloat32, bytes_of(one_.data()), segment_.dtype, wire.data(), n);
    for (std::size_t i = 0; i < n; ++i) {
      residual[i] -= one_[i];
    }
  }
}

Status PlainCodec::absorb(unsigned round, std::uint64_t samples, std::span<const std::byte> wire) {
  if (round != 0 || wire.size() != wire_bytes()) {
    return {StatusCode::kCorruptWire,
            "a wire of " + std::to_string(wire.size()) + " bytes for a segment of " +
                std::to_string(wire_bytes())};
  }
  const std::size_t n = segment_.element_count;
  kernels::cast(DType::kFloat32, bytes_of(one_.data()), segment_.dtype, wire.data(), n);
  const auto weight = static_cast<float>(samples);
  for (std::size_t i = 0; i < n; ++i) {
    total_[i] = kernels::add_weighted(total_[i], weight, one_[i]);
  }
  return {};
}

Status PlainCodec::decode(unsigned round, float scale, std::span<std::byte> result) {
  STRETTO_TRY(check(round, result.size(), "a result"));
  for (float& value : total_) {
    value = kernels::canonical(value * scale);
  }
  kernels::cast(
      segment_.dtype, result.data(), DType::kFloat32, bytes_of(total_.data()), total_.size());
  std::fill(total_.begin(), total_.end(), 0.0F);
  return {};
}

}  // namespace

Result<std::unique_ptr<spi::Codec>> make_plain_codec(const spi::CodecSegment& segment) {
  return std::make_unique<PlainCodec>(segment);
}

}  // namespace stretto::codec

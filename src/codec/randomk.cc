// SPDX-License-Identifier: Apache-2.0

// Random-k.  Part j of k of a segment of n elements is [j n / k, (j + 1) n / k); which of its
// elements is chosen says a number made of the segment's seed, the step and j.  A wire is the k
// values of x = value + factor * residual there, as they are; sums are of those; the owner sends
// their mean as it is.  Without feedback a result is the mean times the length of its part: an
// element is chosen once in so many steps.
#include "codec/randomk.hpp"

#include "codec/sparse.hpp"
#include "kernels/float_environment.hpp"
#include "kernels/scatter.hpp"
#include "kernels/select.hpp"

#include <cstring>

namespace stretto::codec {
namespace {

/// Where part j begins.
std::size_t part_begin(std::size_t j, std::size_t k, std::size_t n) noexcept {
  return j * n / k;  // both are below 2^32
}

/// Chooses one index of each part.
void choose(const spi::CodecSegment& segment,
            const spi::CodecRound& round,
            std::span<std::uint32_t> index) noexcept {
  const std::uint32_t seed = step_seed(segment, round);
  std::size_t begin = 0;
  for (std::size_t j = 0; j < index.size(); ++j) {
    const std::size_t end = part_begin(j + 1, index.size(), segment.element_count);
    const std::uint64_t chance = kernels::chance(seed, j);
    index[j] = static_cast<std::uint32_t>(begin + (chance * (end - begin) >> 32U));
    begin = end;
  }
}

/// Threading: immutable.
class RandomkCodec final : public spi::Codec {
 public:
  RandomkCodec(spi::CodecTraits traits, double share) : traits_(std::move(traits)), share_(share) {}

  const spi::CodecTraits& traits() const noexcept override { return traits_; }
  std::size_t most_wire_bytes(const spi::CodecSegment& segment,
                              unsigned /*round*/) const noexcept override {
    return count(segment) * sizeof(float);
  }
  std::size_t sum_floats(const spi::CodecSegment& segment,
                         unsigned /*round*/) const noexcept override {
    return count(segment);
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
  std::size_t count(const spi::CodecSegment& segment) const noexcept {
    return count_of_share(share_, segment.element_count);
  }
  Result<std::span<const float>> read(const spi::CodecSegment& segment,
                                      std::span<const std::byte> wire) const;
  void write_result(const spi::CodecSegment& segment,
                    const spi::CodecRound& round,
                    std::span<float> means,
                    std::span<std::byte> result) const;

  spi::CodecTraits traits_;
  double share_;
};

Result<spi::Encoding> RandomkCodec::encode(const spi::CodecSegment& segment,
                                           const spi::CodecRound& round,
                                           std::span<const std::byte> values,
                                           const spi::CodecMemory& memory,
                                           std::span<std::byte> wire) const {
  STRETTO_TRY(check_call(traits_.name, segment, round));
  const std::size_t bytes = segment.element_count * size_of(segment.dtype);
  STRETTO_TRY(check_length(traits_.name, "values", values.size(), bytes));
  const std::size_t wire_bytes = most_wire_bytes(segment, round.round);
  STRETTO_TRY(check_room(traits_.name, wire.size(), wire_bytes));
  kernels::SelectTask task;
  task.dtype = segment.dtype;
  task.values = values.data();
  task.element_count = segment.element_count;
  task.residual = memory.residual;
  task.factor = memory.factor;
  task.left = memory.left;
  SparseRoom& room = sparse_room(count(segment));
  const std::span<std::uint32_t> index(room.index.data(), count(segment));
  choose(segment, round, index);
  const kernels::SelectFacts facts = kernels::take_chosen(task, index, room.value.data());
  if (wire_bytes > 0) {
    std::memcpy(wire.data(), room.value.data(), wire_bytes);
  }
  return spi::Encoding{wire_bytes, facts.refused, facts.value_squares, facts.left_squares};
}

/// The values of a wire, all of them numbers, in this thread's room.
Result<std::span<const float>> RandomkCodec::read(const spi::CodecSegment& segment,
                                                  std::span<const std::byte> wire) const {
  const std::size_t k = count(segment);
  if (wire.size() != k * sizeof(float)) {
    return fail(corrupt_wire(traits_.name,
                             "has " + std::to_string(wire.size()) + " bytes instead of " +
                                 std::to_string(k * sizeof(float))));
  }
  const std::span<float> values(sparse_room(k).value.data(), k);
  if (k > 0) {
    std::memcpy(values.data(), wire.data(), wire.size());
  }
  if (!are_values(values)) {
    return fail(corrupt_wire(traits_.name, "has values that no encoder writes"));
  }
  return values;
}

Status RandomkCodec::absorb(const spi::CodecSegment& segment,
                            const spi::CodecRound& round,
                            std::span<const std::byte> wire,
                            float weight,
                            std::span<float> sums) const {
  STRETTO_TRY(check_call(traits_.name, segment, round));
  STRETTO_TRY(check_length(traits_.name, "sums", sums.size(), count(segment)));
  STRETTO_TRY_ASSIGN(const std::span<const float> values, read(segment, wire));
  const kernels::FloatEnvironment environment;
  for (std::size_t j = 0; j < values.size(); ++j) {
    sums[j] = kernels::add_weighted(sums[j], weight, values[j]);
  }
  return {};
}

Result<spi::Encoding> RandomkCodec::conclude(const spi::CodecSegment& segment,
                                             const spi::CodecRound& round,
                                             std::span<float> sums,
                                             float scale,
                                             const spi::CodecMemory& memory,
                                             std::span<std::byte> wire) const {
  STRETTO_TRY(check_call(traits_.name, segment, round));
  const std::size_t k = count(segment);
  STRETTO_TRY(check_length(traits_.name, "sums", sums.size(), k));
  const std::size_t wire_bytes = most_wire_bytes(segment, round.round);
  STRETTO_TRY(check_room(traits_.name, wire.size(), wire_bytes));
  SparseRoom& room = sparse_room(k);
  const std::span<std::uint32_t> index(room.index.data(), k);
  choose(segment, round, index);
  // An owner loses nothing here, but it may have a residual of another codec or of a lost rank.
  kernels::SelectTask task;
  task.element_count = segment.element_count;
  task.residual = memory.residual;
  task.factor = memory.factor;
  task.left = memory.left;
  spi::Encoding encoding;
  encoding.wire_bytes = wire_bytes;
  if (memory.residual != nullptr) {
    encoding.left_squares = kernels::take_chosen(task, index, room.value.data()).left_squares;
  }
  const kernels::FloatEnvironment environment;
  for (std::size_t j = 0; j < k; ++j) {
    const float carried = memory.residual == nullptr ? 0.0F : room.value[j];
    const auto mean = kernels::select_input(sums[j], scale, carried, 1.0F);
    room.value[j] = mean.x;
    encoding.refused += mean.refused ? 1U : 0U;
    encoding.value_squares += static_cast<double>(mean.scaled) * static_cast<double>(mean.scaled);
  }
  if (wire_bytes > 0) {
    std::memcpy(wire.data(), room.value.data(), wire_bytes);
  }
  return encoding;
}

/// Writes means to their places, and zeros between them; may overwrite the means.
void RandomkCodec::write_result(const spi::CodecSegment& segment,
                                const spi::CodecRound& round,
                                std::span<float> means,
                                std::span<std::byte> result) const {
  const std::size_t n = segment.element_count;
  const std::span<std::uint32_t> index(sparse_room(means.size()).index.data(), means.size());
  choose(segment, round, index);
  const kernels::FloatEnvironment environment;
  if (!traits_.feedback) {
    for (std::size_t j = 0; j < means.size(); ++j) {
      const std::size_t length =
          part_begin(j + 1, means.size(), n) - part_begin(j, means.size(), n);
      means[j] = means[j] * static_cast<float>(length);
    }
  }
  kernels::scatter(index, means, segment.dtype, n, result.data());
}

Status RandomkCodec::decode(const spi::CodecSegment& segment,
                            const spi::CodecRound& round,
                            std::span<const std::byte> wire,
                            const spi::CodecMemory& /*memory*/,
                            std::span<std::byte> result) const {
  STRETTO_TRY(check_call(traits_.name, segment, round));
  const std::size_t bytes = segment.element_count * size_of(segment.dtype);
  STRETTO_TRY(check_length(traits_.name, "a result", result.size(), bytes));
  STRETTO_TRY(read(segment, wire));
  const std::size_t k = count(segment);
  write_result(segment, round, {sparse_room(k).value.data(), k}, result);
  return {};
}

Status RandomkCodec::resolve(const spi::CodecSegment& segment,
                             const spi::CodecRound& round,
                             std::span<float> sums,
                             float scale,
                             const spi::CodecMemory& /*memory*/,
                             std::span<std::byte> result) const {
  STRETTO_TRY(check_call(traits_.name, segment, round));
  STRETTO_TRY(check_length(traits_.name, "sums", sums.size(), count(segment)));
  const std::size_t bytes = segment.element_count * size_of(segment.dtype);
  STRETTO_TRY(check_length(traits_.name, "a result", result.size(), bytes));
  const kernels::FloatEnvironment environment;
  for (float& sum : sums) {
    sum = sum * scale;
  }
  write_result(segment, round, sums, result);
  return {};
}

}  // namespace

Result<std::shared_ptr<const spi::Codec>> make_randomk_codec(const CodecName& name) {
  STRETTO_TRY(name.allow_options({"feedback"}));
  STRETTO_TRY_ASSIGN(const double share, name.share_argument(0.1));
  spi::CodecTraits traits;
  traits.name = name.text();
  traits.id = 8;
  traits.segment_elements = std::size_t{256} << 10U;
  STRETTO_TRY_ASSIGN(traits.feedback, name.switch_option("feedback", true));
  traits.error = traits.feedback ? spi::CodecError::kBiased : spi::CodecError::kUnbiased;
  return std::make_shared<const RandomkCodec>(std::move(traits), share);
}

}  // namespace stretto::codec

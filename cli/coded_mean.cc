// SPDX-License-Identifier: Apache-2.0
#include "coded_mean.hpp"

#include <algorithm>
#include <utility>

namespace stretto::cli {

spi::CodecMemory CodedMean::Place::memory() {
  spi::CodecMemory memory;
  if (!residual.empty()) {
    memory.residual = residual.data();
    memory.left = left.data();
  }
  memory.state = state.data();
  memory.next_state = next_state.data();
  memory.scratch = scratch.data();
  return memory;
}

void CodedMean::Place::next_step() {
  residual.swap(left);
  state.swap(next_state);
}

CodedMean::CodedMean(std::shared_ptr<const spi::Codec> codec,
                     std::size_t element_count,
                     std::size_t row_elements,
                     std::size_t ranks,
                     std::uint64_t seed)
    : codec_(std::move(codec)), element_count_(element_count), ranks_(ranks), seed_(seed) {
  if (codec_ == nullptr || !codec_->suits({DType::kFloat32, element_count, row_elements, seed})) {
    return;
  }
  const spi::CodecTraits& traits = codec_->traits();
  const std::size_t most = traits.whole_parameter ? element_count : traits.segment_elements;
  for (std::size_t first = 0; first < element_count; first += most) {
    add_segment(first, std::min(most, element_count - first), row_elements);
  }
}

void CodedMean::add_segment(std::size_t first, std::size_t count, std::size_t row_elements) {
  Segment segment{{DType::kFloat32, count, row_elements, seed_ + first}, first, {}};
  Place place;
  if (codec_->traits().feedback) {
    place.residual.resize(count);
    place.left.resize(count);
  }
  place.state.resize(codec_->state_floats(segment.what));
  place.next_state.resize(place.state.size());
  place.scratch.resize(codec_->scratch_floats(segment.what));
  segment.places.assign(ranks_ + 1, place);
  segments_.push_back(std::move(segment));
}

void CodedMean::average_plainly(std::span<const float> gradients, std::span<float> result) const {
  const float scale = 1.0F / static_cast<float>(ranks_);
  for (std::size_t i = 0; i < element_count_; ++i) {
    float sum = 0;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      sum += gradients[rank * element_count_ + i];
    }
    result[i] = sum * scale;
  }
}

Status CodedMean::average_segment(Segment& segment,
                                  std::span<const float> gradients,
                                  std::span<float> result) {
  const std::size_t count = segment.what.element_count;
  const auto target = std::as_writable_bytes(result.subspan(segment.first, count));
  std::size_t sent = 0;
  for (unsigned r = 0; r < codec_->traits().rounds; ++r) {
    spi::CodecRound round{r, step_, 0, static_cast<std::uint32_t>(ranks_)};
    wire_.resize(codec_->most_wire_bytes(segment.what, r));
    sums_.assign(codec_->sum_floats(segment.what, r), 0);
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      round.source = static_cast<std::uint32_t>(rank);
      const auto values = gradients.subspan(rank * element_count_ + segment.first, count);
      STRETTO_TRY_ASSIGN(
          const spi::Encoding done,
          codec_->encode(
              segment.what, round, std::as_bytes(values), segment.places[rank].memory(), wire_));
      sent += done.wire_bytes;
      STRETTO_TRY(
          codec_->absorb(segment.what, round, std::span(wire_).first(done.wire_bytes), 1, sums_));
    }
    round.source = static_cast<std::uint32_t>(ranks_);
    STRETTO_TRY_ASSIGN(const spi::Encoding done,
                       codec_->conclude(segment.what,
                                        round,
                                        sums_,
                                        1.0F / static_cast<float>(ranks_),
                                        segment.places[ranks_].memory(),
                                        wire_));
    sent += ranks_ * done.wire_bytes;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      STRETTO_TRY(codec_->decode(segment.what,
                                 round,
                                 std::span(wire_).first(done.wire_bytes),
                                 segment.places[rank].memory(),
                                 target));
    }
  }
  for (Place& place : segment.places) {
    place.next_step();
  }
  wire_bytes_ += sent / ranks_;
  return {};
}

Status CodedMean::average(std::span<const float> gradients, std::span<float> result) {
  if (gradients.size() != ranks_ * element_count_ || result.size() != element_count_) {
    return {StatusCode::kInvalidArgument, "gradients or a result of another length"};
  }
  wire_bytes_ = 0;
  if (segments_.empty()) {
    average_plainly(gradients, result);
    wire_bytes_ = 2 * element_count_ * sizeof(float);
  }
  for (Segment& segment : segments_) {
    STRETTO_TRY(average_segment(segment, gradients, result));
  }
  ++step_;
  return {};
}

}  // namespace stretto::cli

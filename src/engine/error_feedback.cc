// SPDX-License-Identifier: Apache-2.0
#include "engine/error_feedback.hpp"

#include "exchange/coding.hpp"

namespace stretto::engine {

spi::ChunkDescription ErrorFeedback::describe(std::size_t group) const noexcept {
  return schedule::describe_group(layout_, coding_, group);
}

Result<std::unique_ptr<ErrorFeedback>> ErrorFeedback::make(const schedule::Layout& layout,
                                                           const schedule::Coding& coding,
                                                           spi::Device& device,
                                                           Rank rank) {
  auto made = std::unique_ptr<ErrorFeedback>(new ErrorFeedback(layout, coding, rank));
  std::size_t floats = 0;
  std::size_t scratch = 0;
  const auto take = [](std::size_t& total, std::size_t count) {
    const std::size_t place = total;
    total += spi::CodedMemory::padded(count);
    return count == 0 ? kNone : place;
  };
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const spi::ChunkDescription chunk = made->describe(g);
    Place& place = made->places_[g];
    if (chunk.codec->traits().feedback) {
      place.residual = take(floats, chunk.element_count);
      place.owned = chunk.owner == rank ? take(floats, chunk.element_count) : kNone;
    }
    place.state = take(floats, exchange::state_floats(chunk));
    place.scratch = take(scratch, exchange::scratch_floats(chunk));
  }
  for (auto& half : made->halves_) {
    STRETTO_TRY_ASSIGN(half, device.allocate(floats * sizeof(float)));
  }
  STRETTO_TRY_ASSIGN(made->scratch_, device.allocate(scratch * sizeof(float)));
  return made;
}

void ErrorFeedback::begin_step(std::uint64_t samples, double learning_rate) noexcept {
  samples_ = samples;
  learning_rate_ = learning_rate;
  has_before_ = false;
  double factor = 1;
  if (samples > 0 && books_.is_share) {
    factor = static_cast<double>(books_.total) / static_cast<double>(samples);
  } else if (samples > 0 && books_.samples > 0) {
    factor = static_cast<double>(books_.samples) / static_cast<double>(samples);
  }
  if (learning_rate > 0 && books_.learning_rate > 0) {
    factor *= books_.learning_rate / learning_rate;
  }
  factor_ = static_cast<float>(factor);
}

void ErrorFeedback::end_step(std::uint64_t samples) noexcept {
  if (samples == 0) {
    return;  // nobody has left anything
  }
  before_ = books_;
  has_before_ = true;
  books_.half = 1 - books_.half;
  ++books_.steps;
  if (samples_ > 0) {
    books_.samples = samples_;
    books_.total = samples;
    books_.is_share = false;
    books_.learning_rate = learning_rate_ > 0 ? learning_rate_ : books_.learning_rate;
  }
}

Status ErrorFeedback::discard_step() {
  if (!has_before_) {
    return {
        StatusCode::kInvalidArgument,
        "there is no step whose residuals could be taken back; call it once, after finish_step"};
  }
  books_ = before_;
  has_before_ = false;
  return {};
}

float* ErrorFeedback::floats(std::size_t half, std::size_t place) const noexcept {
  return place == kNone ? nullptr : reinterpret_cast<float*>(halves_[half]->data()) + place;
}

spi::CodedMemory ErrorFeedback::memory(std::size_t group) const noexcept {
  const Place& place = places_[group];
  spi::CodedMemory memory;
  memory.step = books_.steps + 1;
  memory.residual = floats(books_.half, place.residual);
  memory.left = floats(1 - books_.half, place.residual);
  memory.factor = factor_;
  memory.state = floats(books_.half, place.state);
  memory.next_state = floats(1 - books_.half, place.state);
  memory.scratch =
      place.scratch == kNone ? nullptr : reinterpret_cast<float*>(scratch_->data()) + place.scratch;
  memory.owner_residual = floats(books_.half, place.owned);
  memory.owner_left = floats(1 - books_.half, place.owned);
  return memory;
}

}  // namespace stretto::engine

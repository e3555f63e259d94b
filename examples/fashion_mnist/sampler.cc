// SPDX-License-Identifier: Apache-2.0
#include "sampler.hpp"

#include "random.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace fashion_mnist {
namespace {

constexpr std::size_t kClassCount = 10;

/// The rank that has a class to itself.
std::size_t owner_of(std::size_t label, std::size_t world_size) {
  return label * world_size / kClassCount;
}

}  // namespace

Sampler::Sampler(std::span<const std::uint8_t> labels,
                 Sharding sharding,
                 std::size_t rank,
                 std::size_t world_size,
                 std::size_t batch,
                 std::uint64_t seed)
    : batch_(batch), seed_(seed) {
  if (sharding == Sharding::kMixed) {
    own_.resize(labels.size());
    std::iota(own_.begin(), own_.end(), 0U);
    stride_ = batch * world_size;
    first_ = batch * rank;
    steps_per_epoch_ = labels.size() / stride_;
    return;
  }
  std::vector<std::size_t> counts(world_size);
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto owner = owner_of(labels[i], world_size);
    ++counts[owner];
    if (owner == rank) {
      own_.push_back(static_cast<std::uint32_t>(i));
    }
  }
  stride_ = batch;
  first_ = 0;
  steps_per_epoch_ = *std::min_element(counts.begin(), counts.end()) / batch;
  seed_ += rank;  // ranks draw from different pictures, so they need not agree on an order
}

void Sampler::shuffle_for(std::uint64_t epoch) {
  order_ = own_;
  Random random(seed_ * 0x100000001b3U + epoch);
  for (std::size_t i = order_.size(); i > 1; --i) {
    std::swap(order_[i - 1], order_[static_cast<std::size_t>(random.below(i))]);
  }
  epoch_ = epoch;
}

std::span<const std::uint32_t> Sampler::batch_of(std::uint64_t step) {
  const std::uint64_t epoch = step / steps_per_epoch_;
  if (epoch != epoch_) {
    shuffle_for(epoch);
  }
  const auto at = static_cast<std::size_t>(step % steps_per_epoch_) * stride_ + first_;
  return std::span(order_).subspan(at, batch_);
}

}  // namespace fashion_mnist

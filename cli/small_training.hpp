// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/codec.hpp"
#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace stretto::cli {

/// A net of two layers that learns, in seconds and without a library, to tell ten directions apart:
/// enough to see whether a codec does harm.
///
/// Inputs are 64 numbers that are normal (0, 1); the class of an input is the direction, of ten
/// that the seed draws, along which it lies most.  So all of them can be known: the best accuracy
/// is 1.
struct SmallTraining {
  std::size_t ranks = 4;
  std::size_t batch = 16;  ///< inputs per rank and step
  std::size_t steps = 600;
  float learning_rate = 0.1F;
  float momentum = 0.9F;
  std::uint64_t seed = 1;  ///< of the directions, the weights at the start, and all inputs
};

/// What a training has come to.
struct SmallOutcome {
  double accuracy = 0;             ///< on inputs that it has not seen
  double loss = 0;                 ///< on the same, in nats
  double wire_bytes_per_step = 0;  ///< that one rank and the owners of its share send each other
};

/// Trains with a codec, or with float32 if it is null; the same bits whenever it is called. Vectors
/// and what does not suit the codec stay float32.
///
/// Threading: thread-safe.        Blocking: for as long as it trains, under a second.
/// Errors:    whatever the codec says.
Result<SmallOutcome> train_small(const SmallTraining& training,
                                 std::shared_ptr<const spi::Codec> codec);

}  // namespace stretto::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/device.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>

namespace stretto::engine {

/// What the other threads tell the progress thread.  Plain data, so that a push allocates nothing.
struct Command {
  enum class Kind : std::uint8_t {
    kNone,
    kBegin,   ///< a step begins
    kReady,   ///< a parameter's gradient is there
    kFinish,  ///< no more gradients come in this step
    kPark,    ///< stop looking at the exchange until kResume (the plan changes)
    kResume,
  };
  Kind kind = Kind::kNone;
  bool last_pass = true;   ///< kReady: in the last backward pass, so the gradient may travel
  bool broadcast = false;  ///< kBegin: rank 0's values count, whatever the rules say
  bool ended = false;      ///< kBegin: this rank has no further batches
  std::uint32_t parameter = 0;
  std::uint64_t step = 0;
  std::uint64_t samples = 0;
  double learning_rate = 0;             ///< kBegin: 0 if unknown
  const std::byte* gradient = nullptr;  ///< kReady: null if it lies in its slot
  spi::Event* produced = nullptr;
  TimePoint when{};
};

}  // namespace stretto::engine

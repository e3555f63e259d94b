// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/device.hpp"

namespace stretto::device {

/// Does everything at once, on the thread that posts.
///
/// Threading: confined(one thread at a time posts).
class InlineStream final : public spi::Stream {
 public:
  Status post(const spi::Operation& operation) override;
  Status record(spi::Event& event) override;
  /// kWouldBlock while an event of another stream is not done: work could not be put off.
  Status wait_for(spi::Event& event) override;
  int descriptor() const noexcept override { return -1; }
};

}  // namespace stretto::device

// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/inline_stream.hpp"

#include "device/cpu/cpu_event.hpp"
#include "kernels/kernels.hpp"

namespace stretto::device {

Status InlineStream::post(const spi::Operation& operation) {
  STRETTO_TRY(kernels::validate(operation));
  kernels::run(operation);
  return {};
}

Status InlineStream::record(spi::Event& event) {
  auto* ours = dynamic_cast<CpuEvent*>(&event);
  if (ours == nullptr) {
    return {StatusCode::kInvalidArgument,
            "an event of another device was recorded on a CPU stream; make it with make_event() of "
            "the stream's device"};
  }
  ours->complete(ours->record());
  return {};
}

Status InlineStream::wait_for(spi::Event& event) {
  if (!event.done()) {
    return {StatusCode::kWouldBlock, "the event that the CPU stream is to wait for is not done"};
  }
  return {};
}

}  // namespace stretto::device

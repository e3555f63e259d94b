// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exchange/fixed_ring.hpp"

#include "stretto/spi/device.hpp"
#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace stretto::exchange {

/// Pieces of work, known by number, that go through one stream in turn: each is posted, then
/// recorded, and some time later done.  What a full stream refuses is tried again with the next
/// call.
///
/// Threading: thread-compatible.
/// Ownership: declared before the stream, whose work names the events.
/// Cost:      no allocation after `reset` and `add_event`.
class StreamWork {
 public:
  /// Room for so many numbers; nothing is under way.
  void reset(std::size_t numbers) {
    events_.clear();
    events_.resize(numbers);
    waiting_ = FixedRing<std::uint32_t>(numbers + 1);
    under_way_ = FixedRing<std::uint32_t>(numbers + 1);
    posted_ = false;
  }
  /// A number needs an event before it is pushed.
  Status add_event(spi::Device& device, std::size_t number) {
    STRETTO_TRY_ASSIGN(events_[number], device.make_event());
    return {};
  }

  void push(std::size_t number) { waiting_.push(static_cast<std::uint32_t>(number)); }
  /// Whether something is still to be posted.
  bool has_waiting() const noexcept { return !waiting_.empty(); }

  /// Posts what waits, by `post(number)`; `recorded(number)` is told of each that is under way.
  template <typename Post, typename Recorded>
  Status post(spi::Stream& stream, const Post& post, const Recorded& recorded) {
    while (!waiting_.empty()) {
      const std::uint32_t number = waiting_.front();
      if (!posted_) {
        if (const Status status = post(number); !status.is_ok()) {
          return later_if_full(status);
        }
        posted_ = true;
      }
      if (const Status status = stream.record(*events_[number]); !status.is_ok()) {
        return later_if_full(status);
      }
      posted_ = false;
      waiting_.pop();
      under_way_.push(number);
      recorded(number);
    }
    return {};
  }

  /// Calls `done(number)` for each that is done, in order.
  template <typename Done>
  void collect(spi::Stream& stream, const Done& done) {
    // Also when nothing is under way: a sign may come behind the event that it is for.
    stream.drain();
    while (!under_way_.empty() && events_[under_way_.front()]->done()) {
      const std::uint32_t number = under_way_.front();
      under_way_.pop();
      done(number);
    }
  }

 private:
  static Status later_if_full(const Status& status) {
    return status.code() == StatusCode::kWouldBlock ? Status() : status;
  }

  std::vector<std::unique_ptr<spi::Event>> events_;
  FixedRing<std::uint32_t> waiting_;
  FixedRing<std::uint32_t> under_way_;
  bool posted_ = false;  ///< the first that waits has been posted, but not recorded
};

}  // namespace stretto::exchange

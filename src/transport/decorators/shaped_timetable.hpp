// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/decorators/shaped_words.hpp"

#include "stretto/spi/transport.hpp"
#include "stretto/types.hpp"

#include <cstdint>
#include <optional>
#include <queue>
#include <utility>

namespace stretto::transport {

/// What will happen on a shaped link at known times.
///
/// Threading: confined(progress).
class ShapedTimetable {
 public:
  struct Entry {
    TimePoint when{};
    Rank peer{0};
    Word word = Word::kAnnounce;  ///< kAnnounce stands for any event
    std::uint64_t value = 0;      ///< the message of a grant, the bytes of a credit or fragment
    spi::TransportEvent event = {};
  };

  void add(const Entry& entry) { entries_.push({entry, ++order_}); }
  /// The next entry that is due at `now`: the earliest, and of equal ones the one added first.
  std::optional<Entry> take(TimePoint now) {
    if (next_due() > now) {
      return std::nullopt;
    }
    const Entry entry = entries_.top().entry;
    entries_.pop();
    return entry;
  }
  TimePoint next_due() const noexcept {
    return entries_.empty() ? TimePoint::max() : entries_.top().entry.when;
  }

 private:
  struct Ordered {
    Entry entry;
    std::uint64_t order;
    bool operator<(const Ordered& other) const {
      return std::pair(other.entry.when, other.order) < std::pair(entry.when, order);
    }
  };

  std::priority_queue<Ordered> entries_;
  std::uint64_t order_ = 0;
};

}  // namespace stretto::transport

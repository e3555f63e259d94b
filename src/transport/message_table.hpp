// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace stretto::transport {

/// Records of the messages that are on their way, found by number.
///
/// Numbers are given out in sequence, so `number & mask` scatters perfectly; open addressing with
/// backward shift leaves no tombstones.  Number 0 marks an empty place.
///
/// Threading: thread-compatible.
/// Cost:      allocates only when more messages are alive than ever before (doubling).
template <typename Record>
class MessageTable {
 public:
  explicit MessageTable(std::size_t expected = 256) {
    std::size_t places = 16;
    while (places < 2 * expected) {
      places *= 2;
    }
    places_.resize(places);
  }

  std::size_t size() const noexcept { return size_; }
  /// Makes room for so many records.
  void reserve(std::size_t records) {
    while (places_.size() < 2 * records) {
      grow();
    }
  }

  /// The record, or null.  Valid until the next insert or erase.
  Record* find(std::uint64_t number) noexcept {
    if (number == 0) {
      return nullptr;
    }
    for (std::size_t at = home(number); places_[at].number != 0; at = next(at)) {
      if (places_[at].number == number) {
        return &places_[at].record;
      }
    }
    return nullptr;
  }

  /// Adds a record for a number that is not there yet.
  Record& insert(std::uint64_t number, Record record) {
    if (2 * (size_ + 1) > places_.size()) {
      grow();
    }
    ++size_;
    return place(number, std::move(record));
  }

  void erase(std::uint64_t number) noexcept {
    std::size_t hole = home(number);
    while (places_[hole].number != number) {
      if (places_[hole].number == 0) {
        return;
      }
      hole = next(hole);
    }
    --size_;
    for (std::size_t at = next(hole); places_[at].number != 0; at = next(at)) {
      // A record may fill the hole unless its home lies cyclically in (hole, at].
      const std::size_t mask = places_.size() - 1;
      const std::size_t distance_to_home = (at - home(places_[at].number)) & mask;
      if (distance_to_home >= ((at - hole) & mask)) {
        places_[hole] = std::move(places_[at]);
        hole = at;
      }
    }
    places_[hole] = Place{};
  }

  /// Calls visit(number, record) for each, in no particular order.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const Place& place : places_) {
      if (place.number != 0) {
        visit(place.number, place.record);
      }
    }
  }

 private:
  struct Place {
    std::uint64_t number = 0;
    Record record{};
  };

  std::size_t home(std::uint64_t number) const noexcept {
    return static_cast<std::size_t>(number) & (places_.size() - 1);
  }
  std::size_t next(std::size_t at) const noexcept { return (at + 1) & (places_.size() - 1); }

  Record& place(std::uint64_t number, Record record) {
    std::size_t at = home(number);
    while (places_[at].number != 0) {
      at = next(at);
    }
    places_[at] = Place{number, std::move(record)};
    return places_[at].record;
  }

  void grow() {
    std::vector<Place> old(2 * places_.size());
    old.swap(places_);
    for (Place& entry : old) {
      if (entry.number != 0) {
        place(entry.number, std::move(entry.record));
      }
    }
  }

  std::vector<Place> places_;
  std::size_t size_ = 0;
};

}  // namespace stretto::transport

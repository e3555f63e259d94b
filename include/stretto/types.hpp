// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stretto {

/// One training process of a group, counted from 0.
enum class Rank : std::uint32_t {};
/// One named tensor that is trained; its number is the order of registration.
enum class ParameterId : std::uint32_t {};
/// A run of parameters in the arena that have one dtype and one rule.
enum class BucketId : std::uint32_t {};
/// A run of elements of a bucket: the unit of transfer and of pre-emption.  Numbered over all
/// buckets.
enum class ChunkId : std::uint32_t {};

/// The number behind an id, for indexing.
template <typename Id>
constexpr std::size_t index_of(Id id) noexcept {
  return static_cast<std::size_t>(id);
}

/// Element types of gradients.  The values are part of the wire format.
enum class DType : std::uint8_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) noexcept {
  return dtype == DType::kFloat32 ? 4 : 2;
}

/// "float32", "float16" or "bfloat16".
std::string_view to_string(DType dtype) noexcept;

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

/// The moment at which a wait gives up.  Every wait takes one.
class Deadline {
 public:
  /// A deadline this far from now.
  static Deadline after(std::chrono::nanoseconds wait) { return Deadline(Clock::now() + wait); }
  explicit Deadline(TimePoint when) noexcept : when_(when) {}

  TimePoint when() const noexcept { return when_; }
  bool passed() const noexcept { return Clock::now() >= when_; }
  /// Time that is left; zero if it has passed.
  std::chrono::nanoseconds left() const noexcept {
    // Compared first: the difference to the earliest of all times would overflow.
    const TimePoint now = Clock::now();
    return when_ > now ? std::chrono::nanoseconds(when_ - now) : std::chrono::nanoseconds(0);
  }

 private:
  TimePoint when_;
};

/// Lengths of a tensor's dimensions, outermost first; empty for a scalar.
using Shape = std::vector<std::int64_t>;

/// Product of the lengths; 1 for a scalar.
std::size_t element_count(const Shape& shape) noexcept;

/// "[64, 3, 7, 7]".
std::string to_string(const Shape& shape);

}  // namespace stretto

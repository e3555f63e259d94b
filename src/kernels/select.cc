// SPDX-License-Identifier: Apache-2.0

// What is around the pass over a segment: a threshold from a sample before it, and the exact choice
// among what it found.  The threshold only saves work.  It aims a little below the k-th largest, so
// that a few more than k are found; if there are too many for the room, all but the k largest of
// them are dropped and the threshold rises above the k-th; if there are fewer than k, the pass is
// done again with everything but zeros.
#include "kernels/select.hpp"

#include "kernels/float_environment.hpp"
#include "kernels/select_block.hpp"
#include "kernels/table.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>

namespace stretto::kernels {
namespace {

constexpr std::size_t kLeastSample = 1024;
constexpr std::size_t kSampleOneOf = 100;
constexpr std::size_t kMostSample = std::size_t{1} << 14U;
constexpr std::size_t kSpareRoom = 4096;

constexpr unsigned kDigitBits = 11;
constexpr std::size_t kFewValues = 128;

/// Magnitudes from `low` on, in buckets of 2^shift, up to the one of digit `last`.
struct Buckets {
  std::uint32_t low = 0;
  std::uint32_t last = 0;
  unsigned shift = 0;
  std::array<std::uint32_t, std::size_t{1} << kDigitBits> counts{};

  /// Cuts the range from `least` to `most`.
  void cut(std::uint32_t least, std::uint32_t most) noexcept {
    const auto bits = static_cast<unsigned>(std::bit_width(most - least));
    low = least;
    shift = bits > kDigitBits ? bits - kDigitBits : 0;
    last = (most - least) >> shift;
    counts.fill(0);
  }
  void add(std::uint32_t magnitude) noexcept {
    const std::uint32_t digit = (magnitude - low) >> shift;
    // What is beyond the range counts for nothing, without a branch.
    counts[digit % counts.size()] += digit <= last ? 1U : 0U;
  }
  /// The bucket of the k-th largest; k becomes its place in it.
  std::uint32_t find(std::size_t& k) const noexcept {
    std::uint32_t digit = last;
    while (digit > 0 && counts[digit] < k) {
      k -= counts[digit];
      --digit;
    }
    return digit;
  }
};

/// The k-th largest of the few values that are in a bucket.
std::uint32_t kth_in_bucket(const float* values,
                            std::size_t count,
                            std::uint32_t least,
                            unsigned shift,
                            std::size_t k) noexcept {
  std::array<std::uint32_t, kFewValues + 1> few{};
  std::size_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = magnitude_bits(values[i]);
    few[found] = magnitude;
    found += (magnitude - least) >> shift == 0 ? 1U : 0U;
  }
  const auto place = few.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(
      few.begin(), place, few.begin() + static_cast<std::ptrdiff_t>(found), std::greater<>());
  return *place;
}

/// The k-th largest |value|, as bits; 1 <= k <= count.  Mostly three passes, and no branch that
/// depends on a value.
std::uint32_t kth_magnitude(const float* values, std::size_t count, std::size_t k) noexcept {
  std::int32_t least = static_cast<std::int32_t>(kSelectNothing);
  std::int32_t most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<std::int32_t>(magnitude_bits(values[i]));
    least = std::min(least, magnitude);
    most = std::max(most, magnitude);
  }
  Buckets buckets;
  buckets.cut(static_cast<std::uint32_t>(least), static_cast<std::uint32_t>(most));
  while (true) {
    for (std::size_t i = 0; i < count; ++i) {
      buckets.add(magnitude_bits(values[i]));
    }
    const std::uint32_t digit = buckets.find(k);
    const std::uint32_t low = buckets.low + (digit << buckets.shift);
    if (buckets.shift == 0) {
      return low;
    }
    if (buckets.counts[digit] <= kFewValues) {
      return kth_in_bucket(values, count, low, buckets.shift, k);
    }
    buckets.cut(low, low + (1U << buckets.shift) - 1U);
  }
}

/// Reads one element of each of `size` equal parts of the segment, at a place by chance: no rhythm
/// of the data can fool it.
template <typename Load>
void read_sample(
    std::size_t n, std::uint32_t seed, std::size_t size, float* sample, const Load& load) noexcept {
  const std::uint64_t stride = (std::uint64_t{n} << 32U) / size;
  const std::uint64_t width = n / size;
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < size; ++i, begin += stride) {
    sample[i] = load((begin >> 32U) + (chance(seed, i) * width >> 32U)).x;
  }
}

/// The common case apart, since what is loaded how is then decided once.
void read_sample(const SelectTask& task,
                 std::uint32_t seed,
                 std::size_t size,
                 float* sample) noexcept {
  const std::size_t n = task.element_count;
  if (task.dtype == DType::kFloat32 && task.residual != nullptr && task.state == nullptr) {
    return read_sample(n, seed, size, sample, [&](std::size_t i) {
      const float value = ScalarFloat::load(task.values, i);
      return select_input(value, task.scale, task.residual[i], task.factor);
    });
  }
  read_sample(n, seed, size, sample, [&](std::size_t i) { return load_element(task, i); });
}

/// Where a sample's k-th largest is if the segment's k-th largest shall be above it in all but one
/// of a thousand cases.
std::size_t place_in_sample(std::size_t n, std::size_t k, std::size_t size) noexcept {
  if (size == n) {
    return k;
  }
  const double expected =
      static_cast<double>(size) * static_cast<double>(k) / static_cast<double>(n);
  return static_cast<std::size_t>(expected + 3 * std::sqrt(expected)) + 2;
}

std::uint32_t first_threshold(const SelectTask& task, std::size_t k, std::uint32_t seed) noexcept {
  const std::size_t n = task.element_count;
  const std::size_t size = std::min({n, std::max(kLeastSample, n / kSampleOneOf), kMostSample});
  const std::size_t place = place_in_sample(n, k, size);
  if (place > size) {
    return kSelectNonZero;
  }
  std::array<float, kMostSample> sample;
  read_sample(task, seed, size, sample.data());
  return std::max(kSelectNonZero, kth_magnitude(sample.data(), size, place));
}

/// Drops all but the k largest from the room.
void keep_largest(SelectProgress& progress, std::size_t k) noexcept {
  if (progress.count <= k) {
    return;
  }
  const SelectRoom& room = progress.room;
  const std::uint32_t kth = kth_magnitude(room.value, progress.count, k);
  std::size_t above = 0;
  for (std::size_t i = 0; i < progress.count; ++i) {
    above += magnitude_bits(room.value[i]) > kth ? 1U : 0U;
  }
  std::size_t equal = k - above;
  std::size_t kept = 0;
  std::array<double, 4> dropped{};  // so many additions at a time
  for (std::size_t i = 0; i < progress.count; ++i) {
    const float value = room.value[i];
    const std::uint32_t bits = magnitude_bits(value);
    const std::uint32_t ties = (bits == kth ? 1U : 0U) & (equal > 0 ? 1U : 0U);
    const std::uint32_t keeps = (bits > kth ? 1U : 0U) | ties;
    equal -= ties;
    room.index[kept] = room.index[i];
    room.value[kept] = value;
    kept += keeps;
    const double left = static_cast<double>(float_of(bits & (keeps - 1U)));
    dropped[i % 4] += left * left;
  }
  progress.count = kept;
  progress.threshold = kth + 1;
  progress.facts.left_squares += (dropped[0] + dropped[2]) + (dropped[1] + dropped[3]);
}

SelectProgress pass(const SelectTask& task,
                    std::size_t k,
                    std::uint32_t threshold,
                    const SelectRoom& room) noexcept {
  SelectProgress progress;
  progress.threshold = threshold;
  progress.room = room;
  while (true) {
    active_table().select->select(task, progress);
    keep_largest(progress, k);
    if (progress.first >= task.element_count) {
      return progress;
    }
  }
}

/// Leaves nothing of what is selected.  Indices are those of the whole segment, of which the task
/// is the part from `first` on.
void clear(const SelectTask& task,
           std::span<const std::uint32_t> index,
           std::size_t first) noexcept {
  if (task.left != nullptr) {
    for (const std::uint32_t i : index) {
      task.left[i - first] = 0;
    }
  }
  if (task.state != nullptr) {
    for (const std::uint32_t i : index) {
      task.next_state[i - first] = 0;
    }
  }
}

/// So many elements are still in the first cache after a pass over them.
constexpr std::size_t kPart = 16 * kCodingBlock;

/// Elements [first, first + kPart) of a segment, or up to its end.
SelectTask part_of(const SelectTask& task, std::size_t first) noexcept {
  alignas(64) static constexpr std::array<float, kPart> kZeros{};
  const auto from = [first](auto* all) { return all == nullptr ? nullptr : all + first; };
  SelectTask part = task;
  part.element_count = std::min(kPart, task.element_count - first);
  part.values = task.values == nullptr ? reinterpret_cast<const std::byte*>(kZeros.data())
                                       : task.values + first * size_of(task.dtype);
  part.residual = from(task.residual);
  part.left = from(task.left);
  part.state = from(task.state);
  part.next_state = from(task.next_state);
  return part;
}

/// Forms x, and leaves all of it.
SelectFacts leave_all(const SelectTask& task) noexcept {
  std::array<std::uint32_t, kSelectBlockRoom> index;
  std::array<float, kSelectBlockRoom> value;
  SelectProgress progress;
  progress.room = {index.data(), value.data(), kSelectBlockRoom};
  active_table().select->select(task, progress);
  return progress.facts;
}

double left_squares_of(const SelectTask& task) noexcept {
  if (task.left == nullptr) {
    return 0;
  }
  const auto* left = reinterpret_cast<const std::byte*>(task.left);
  return active_table().select->measure(DType::kFloat32, left, task.element_count).value_squares;
}

}  // namespace

std::size_t select_room(std::size_t n, std::size_t k) noexcept {
  return std::min(n, 2 * k + kSpareRoom) + kSelectBlockRoom;
}

SelectFacts select_largest(const SelectTask& task,
                           std::size_t k,
                           std::uint32_t seed,
                           const SelectRoom& room) noexcept {
  if (task.element_count == 0 || k == 0) {
    return {};
  }
  const FloatEnvironment environment;
  const std::uint32_t threshold = first_threshold(task, k, seed);
  SelectProgress progress = pass(task, k, threshold, room);
  if (progress.count < k && threshold > kSelectNonZero) {
    progress = pass(task, k, kSelectNonZero, room);
  }
  clear(task, {room.index, progress.count}, 0);
  progress.facts.selected = progress.count;
  return progress.facts;
}

SelectFacts take_chosen(const SelectTask& task,
                        std::span<const std::uint32_t> index,
                        float* values) noexcept {
  const FloatEnvironment environment;
  SelectFacts facts;
  std::size_t taken = 0;
  for (std::size_t first = 0; first < task.element_count; first += kPart) {
    const SelectTask part = part_of(task, first);
    const SelectFacts formed = leave_all(part);
    const std::size_t begin = taken;
    for (; taken < index.size() && index[taken] < first + part.element_count; ++taken) {
      const std::size_t i = index[taken] - first;
      values[taken] = part.left == nullptr ? load_element(part, i).x : part.left[i];
    }
    clear(part, index.subspan(begin, taken - begin), first);
    facts.refused += formed.refused;
    facts.value_squares += formed.value_squares;
    facts.left_squares += left_squares_of(part);
  }
  facts.selected = taken;
  return facts;
}

SelectFacts measure(DType dtype, const std::byte* values, std::size_t n) noexcept {
  const FloatEnvironment environment;
  return active_table().select->measure(dtype, values, n);
}

}  // namespace stretto::kernels

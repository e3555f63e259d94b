// SPDX-License-Identifier: Apache-2.0
#include "codec/rice.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace stretto::codec {
namespace {

constexpr unsigned kMostParameter = 31;
/// A code of up to so many ones, a zero and the rest fits into what a window always holds.
constexpr unsigned kShortUnary = 24;
constexpr unsigned kWindowBits = 57;

std::uint64_t low_bits(unsigned count) noexcept {
  return (std::uint64_t{1} << count) - 1U;
}

std::size_t most_bits(std::size_t n, std::size_t count, unsigned parameter) noexcept {
  return count * (1 + parameter) + ((n - count) >> parameter);
}

/// Collects bits, lower ones first, and stores them eight bytes at a time.
class BitWriter {
 public:
  explicit BitWriter(std::byte* to) noexcept : to_(to) {}
  /// At most kWindowBits, the others 0.
  void put(std::uint64_t bits, unsigned count) noexcept {
    word_ |= bits << filled_;
    filled_ += count;
    if (filled_ >= 64) {
      std::memcpy(to_, &word_, sizeof word_);
      to_ += sizeof word_;
      filled_ -= 64;
      word_ = filled_ == 0 ? 0 : bits >> (count - filled_);
    }
  }
  /// Returns the end of what was written.
  std::byte* finish() noexcept {
    const std::size_t bytes = (filled_ + 7) / 8;
    std::memcpy(to_, &word_, bytes);
    return to_ + bytes;
  }

 private:
  std::byte* to_;
  std::uint64_t word_ = 0;
  unsigned filled_ = 0;
};

/// Looks at bits anywhere; behind the end there are zeros.
class BitReader {
 public:
  explicit BitReader(std::span<const std::byte> from) noexcept : from_(from) {}
  /// At least kWindowBits from here on.
  std::uint64_t window() const noexcept {
    const std::size_t byte = at_ / 8;
    std::uint64_t word = 0;
    if (byte + sizeof word <= from_.size()) [[likely]] {
      std::memcpy(&word, from_.data() + byte, sizeof word);
    } else if (byte < from_.size()) {
      std::memcpy(&word, from_.data() + byte, from_.size() - byte);
    }
    return word >> (at_ % 8);
  }
  void skip(std::size_t bits) noexcept { at_ += bits; }
  /// Whether all was read but what fills up the last byte, and that is 0.
  bool at_end() const noexcept { return (at_ + 7) / 8 == from_.size() && window() == 0; }

 private:
  std::span<const std::byte> from_;
  std::size_t at_ = 0;
};

void put_long(BitWriter& writer,
              std::size_t ones,
              std::uint64_t rest,
              unsigned parameter) noexcept {
  for (; ones > kShortUnary; ones -= kShortUnary) {
    writer.put(low_bits(kShortUnary), kShortUnary);
  }
  const auto last = static_cast<unsigned>(ones);
  writer.put(low_bits(last), last + 1);
  writer.put(rest, parameter);
}

/// The gap that a code of many ones says; more than `most` if it cannot be.
std::uint64_t get_long(BitReader& reader, unsigned parameter, std::size_t most) noexcept {
  std::uint64_t ones = 0;
  while (true) {
    const auto run =
        std::min<unsigned>(static_cast<unsigned>(std::countr_one(reader.window())), kShortUnary);
    ones += run;
    reader.skip(run);
    if (ones > most >> parameter) {
      return most + 1;
    }
    if (run < kShortUnary) {
      break;
    }
  }
  reader.skip(1);
  const std::uint64_t rest = reader.window() & low_bits(parameter);
  reader.skip(parameter);
  return ones << parameter | rest;
}

std::uint64_t get_gap(BitReader& reader, unsigned parameter, std::size_t most) noexcept {
  const std::uint64_t window = reader.window();
  const auto ones = static_cast<unsigned>(std::countr_one(window));
  if (ones > kShortUnary) [[unlikely]] {
    return get_long(reader, parameter, most);
  }
  reader.skip(ones + 1 + parameter);
  return std::uint64_t{ones} << parameter | (window >> (ones + 1) & low_bits(parameter));
}

}  // namespace

static_assert(kShortUnary + 1 + kMostParameter <= kWindowBits);

unsigned rice_parameter(std::size_t n, std::size_t count) noexcept {
  unsigned best = 0;
  // The bound falls and then rises with p.
  while (best < kMostParameter && most_bits(n, count, best + 1) < most_bits(n, count, best)) {
    ++best;
  }
  return best;
}

std::size_t most_index_bytes(std::size_t n, std::size_t count) noexcept {
  return (most_bits(n, count, rice_parameter(n, count)) + 7) / 8;
}

std::size_t write_indices(std::span<const std::uint32_t> indices,
                          unsigned parameter,
                          std::byte* to) noexcept {
  BitWriter writer(to);
  std::uint32_t next = 0;
  for (const std::uint32_t index : indices) {
    const std::uint32_t gap = index - next;
    next = index + 1;
    const std::uint32_t ones = gap >> parameter;
    const std::uint64_t rest = gap & low_bits(parameter);
    if (ones > kShortUnary) [[unlikely]] {
      put_long(writer, ones, rest, parameter);
    } else {
      writer.put(rest << (ones + 1) | low_bits(ones), ones + 1 + parameter);
    }
  }
  return static_cast<std::size_t>(writer.finish() - to);
}

bool read_indices(std::span<const std::byte> from,
                  unsigned parameter,
                  std::size_t n,
                  std::span<std::uint32_t> indices) noexcept {
  if (parameter > kMostParameter) {
    return false;
  }
  BitReader reader(from);
  std::uint64_t next = 0;
  for (std::uint32_t& index : indices) {
    const std::uint64_t at = next + get_gap(reader, parameter, n);
    if (at >= n) {
      return false;
    }
    index = static_cast<std::uint32_t>(at);
    next = at + 1;
  }
  return reader.at_end();
}

}  // namespace stretto::codec

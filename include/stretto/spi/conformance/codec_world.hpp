// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/codec.hpp"
#include "stretto/types.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::spi::conformance {

/// The nearest float16 or bfloat16; of a NaN, one.
inline std::uint16_t narrow(DType dtype, float value) {
  const bool is_half = dtype == DType::kFloat16;
  const int fraction = is_half ? 10 : 7;
  const int least = is_half ? -14 : -126;
  const int most = is_half ? 15 : 127;
  const unsigned sign = std::signbit(value) ? 0x8000U : 0U;
  const auto infinity = static_cast<unsigned>(most - least + 2) << static_cast<unsigned>(fraction);
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(sign | infinity | 1U << static_cast<unsigned>(fraction - 1));
  }
  const double magnitude = std::abs(static_cast<double>(value));
  if (std::isinf(value) || magnitude >= std::ldexp(2.0 - std::ldexp(0.5, -fraction), most)) {
    return static_cast<std::uint16_t>(sign | infinity);
  }
  const int exponent = magnitude == 0 ? least : std::max(std::ilogb(magnitude), least);
  const auto steps =
      static_cast<unsigned>(std::nearbyint(std::ldexp(magnitude, fraction - exponent)));
  // Below the least exponent the leading one is missing, and one that rounding carries is right.
  const auto bits =
      (static_cast<unsigned>(exponent - least) << static_cast<unsigned>(fraction)) + steps;
  return static_cast<std::uint16_t>(sign | bits);
}

inline float widen(DType dtype, std::uint16_t bits) {
  const bool is_half = dtype == DType::kFloat16;
  const unsigned fraction = is_half ? 10U : 7U;
  const unsigned all = is_half ? 31U : 255U;
  const unsigned exponent = bits >> fraction & all;
  const unsigned rest = bits & ((1U << fraction) - 1U);
  float value = 0;
  if (exponent == all) {
    value = rest != 0 ? std::numeric_limits<float>::quiet_NaN()
                      : std::numeric_limits<float>::infinity();
  } else {
    const unsigned steps = exponent == 0 ? rest : rest | 1U << fraction;
    const int place = static_cast<int>(exponent == 0 ? 1U : exponent) - (is_half ? 15 : 127);
    value = std::ldexp(static_cast<float>(steps), place - static_cast<int>(fraction));
  }
  return (bits & 0x8000U) != 0 ? -value : value;
}

/// Values as memory of their type, and back.
inline std::vector<std::byte> to_memory(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> memory(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kFloat32) {
      std::memcpy(memory.data() + 4 * i, &values[i], 4);
    } else {
      const std::uint16_t bits = narrow(dtype, values[i]);
      std::memcpy(memory.data() + 2 * i, &bits, 2);
    }
  }
  return memory;
}
inline std::vector<float> from_memory(DType dtype, std::span<const std::byte> memory) {
  std::vector<float> values(memory.size() / size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kFloat32) {
      std::memcpy(&values[i], memory.data() + 4 * i, 4);
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, memory.data() + 2 * i, 2);
      values[i] = widen(dtype, bits);
    }
  }
  return values;
}

/// What one rank, or the owner, keeps for one segment.  What a step is to write is no number
/// before, so that whatever it leaves out shows.
class CodecPlace {
 public:
  CodecPlace(const Codec& codec, const CodecSegment& segment)
      : residual_(codec.traits().feedback ? segment.element_count : 0),
        left_(residual_.size(), kNothing),
        state_(codec.state_floats(segment)),
        next_state_(state_.size(), kNothing),
        scratch_(codec.scratch_floats(segment), kNothing) {}

  CodecMemory memory(float factor = 1) {
    CodecMemory memory;
    memory.residual = residual_.empty() ? nullptr : residual_.data();
    memory.left = residual_.empty() ? nullptr : left_.data();
    memory.factor = factor;
    memory.state = state_.data();
    memory.next_state = next_state_.data();
    memory.scratch = scratch_.data();
    return memory;
  }
  /// Ends a step: what it has left is what the next one finds.  Who has encoded nothing keeps the
  /// residual, and the state unless decoding has written the next one.
  void end_step(bool has_encoded) {
    if (has_encoded) {
      residual_.swap(left_);
    }
    if (has_encoded || (!next_state_.empty() && !std::isnan(next_state_.front()))) {
      state_.swap(next_state_);
    }
    left_.assign(left_.size(), kNothing);
    next_state_.assign(next_state_.size(), kNothing);
    scratch_.assign(scratch_.size(), kNothing);
  }

  const std::vector<float>& residual() const noexcept { return residual_; }
  const std::vector<float>& state() const noexcept { return state_; }
  void set_residual(std::vector<float> residual) { residual_ = std::move(residual); }

 private:
  static constexpr float kNothing = std::numeric_limits<float>::quiet_NaN();

  std::vector<float> residual_;
  std::vector<float> left_;
  std::vector<float> state_;
  std::vector<float> next_state_;
  std::vector<float> scratch_;
};

/// All ranks and the owner of one segment, in one thread: drives every round of a step, in the
/// two-stage form, or in the all-gather form where each rank resolves.
///
/// Threading: thread-compatible.
class CodecWorld {
 public:
  enum class Form { kOwner, kAllGather };

  CodecWorld(const Codec& codec,
             const CodecSegment& segment,
             std::size_t ranks,
             Form form = Form::kOwner)
      : codec_(codec),
        segment_(segment),
        form_(form),
        places_(ranks, CodecPlace(codec, segment)),
        owner_(codec, segment),
        wires_(ranks),
        results_(ranks),
        encodings_(ranks) {}

  /// One step; gradients by rank, as memory of the segment's type.  A rank without samples does not
  /// encode.
  void step(const std::vector<std::vector<std::byte>>& gradients,
            const std::vector<std::uint64_t>& samples) {
    ++step_;
    refused_ = 0;
    for (auto& result : results_) {
      result.assign(segment_.element_count * size_of(segment_.dtype), std::byte{0xff});
    }
    for (unsigned round = 0; round < codec_.traits().rounds; ++round) {
      encode(round, gradients, samples);
      reduce(round, samples);
    }
    for (std::size_t r = 0; r < places_.size(); ++r) {
      places_[r].end_step(samples[r] > 0);
    }
    // Where there are more rounds the owner adds what is exact, and leaves nothing.
    owner_.end_step(form_ == Form::kOwner && codec_.traits().rounds == 1);
  }

  std::size_t size() const noexcept { return places_.size(); }
  CodecPlace& rank(std::size_t r) { return places_[r]; }
  CodecPlace& owner() { return owner_; }
  std::vector<float> result(std::size_t r) const {
    return from_memory(segment_.dtype, results_[r]);
  }
  const std::vector<std::byte>& result_memory(std::size_t r) const { return results_[r]; }
  /// What ranks have refused in the last step, all rounds together.
  std::size_t refused() const noexcept { return refused_; }
  /// Of the last step's last round.
  const Encoding& encoding(std::size_t r) const { return encodings_[r]; }
  const std::vector<std::byte>& wire(std::size_t r) const { return wires_[r]; }

 private:
  CodecRound round_of(unsigned round, std::size_t source) const {
    return {round, step_, static_cast<std::uint32_t>(source), static_cast<std::uint32_t>(size())};
  }

  void encode(unsigned round,
              const std::vector<std::vector<std::byte>>& gradients,
              const std::vector<std::uint64_t>& samples) {
    for (std::size_t r = 0; r < size(); ++r) {
      if (samples[r] == 0) {
        continue;
      }
      wires_[r].assign(codec_.most_wire_bytes(segment_, round), std::byte{0xff});
      const auto done =
          codec_.encode(segment_, round_of(round, r), gradients[r], places_[r].memory(), wires_[r]);
      ASSERT_TRUE(done.has_value()) << done.error().to_string();
      wires_[r].resize(done->wire_bytes);
      encodings_[r] = *done;
      refused_ += done->refused;
    }
  }

  void reduce(unsigned round, const std::vector<std::uint64_t>& samples) {
    std::vector<float> sums(codec_.sum_floats(segment_, round));
    std::uint64_t total = 0;
    for (std::size_t r = 0; r < size(); ++r) {
      total += samples[r];
      if (samples[r] > 0) {
        const Status status = codec_.absorb(
            segment_, round_of(round, r), wires_[r], static_cast<float>(samples[r]), sums);
        ASSERT_TRUE(status.is_ok()) << status.to_string();
      }
    }
    const float scale = total == 0 ? 0.0F : static_cast<float>(1.0 / static_cast<double>(total));
    if (form_ == Form::kAllGather) {
      for (std::size_t r = 0; r < size(); ++r) {
        std::vector<float> own = sums;
        const Status status = codec_.resolve(
            segment_, round_of(round, r), own, scale, places_[r].memory(), results_[r]);
        ASSERT_TRUE(status.is_ok()) << status.to_string();
      }
      return;
    }
    std::vector<std::byte> wire(codec_.most_wire_bytes(segment_, round));
    const auto done =
        codec_.conclude(segment_, round_of(round, size()), sums, scale, owner_.memory(), wire);
    ASSERT_TRUE(done.has_value()) << done.error().to_string();
    wire.resize(done->wire_bytes);
    for (std::size_t r = 0; r < size(); ++r) {
      const Status status =
          codec_.decode(segment_, round_of(round, r), wire, places_[r].memory(), results_[r]);
      ASSERT_TRUE(status.is_ok()) << status.to_string();
    }
  }

  const Codec& codec_;
  CodecSegment segment_;
  Form form_;
  std::vector<CodecPlace> places_;
  CodecPlace owner_;
  std::vector<std::vector<std::byte>> wires_;
  std::vector<std::vector<std::byte>> results_;
  std::vector<Encoding> encodings_;
  std::uint64_t step_ = 0;
  std::size_t refused_ = 0;
};

}  // namespace stretto::spi::conformance

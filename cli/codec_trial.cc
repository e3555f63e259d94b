// SPDX-License-Identifier: Apache-2.0
#include "codec_trial.hpp"

#include "kernels/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string_view>
#include <utility>

namespace stretto::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPlaces = 4096;  ///< elements over which a step's gradient moves
constexpr std::size_t kRowElements = 1024;
constexpr std::size_t kRows = 512;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Values drawn from a table of a million, so that making 100 MB of them takes no time.
std::vector<float> draw(const std::string& distribution, std::size_t count) {
  std::vector<float> values(count);
  if (distribution == "zeros") {
    return values;
  }
  constexpr std::size_t kTable = std::size_t{1} << 20;
  std::mt19937 random(1);
  std::vector<float> table(kTable);
  std::student_t_distribution<float> heavy(3);
  std::normal_distribution<float> normal;
  for (float& value : table) {
    value = 1e-3F * (distribution == "heavy" ? heavy(random) : normal(random));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t mixed = (i + 1) * 0x9E3779B97F4A7C15U;
    values[i] = table[(mixed ^ (mixed >> 29U)) >> 20U & (kTable - 1)];
  }
  return values;
}

/// What an element's error may be, beside the bounds that hold for a segment as a whole.
struct Bound {
  double of_value = 0;      ///< share of |x|
  double of_block = 0;      ///< share of the largest |x| in its block of 256
  bool by_element = false;  ///< else only the sum of squares may not grow
};

Bound bound_of(const spi::CodecTraits& traits) {
  const std::string_view name = traits.name;
  const double rounding = traits.error == spi::CodecError::kUnbiased ? 1 : 0.5;
  constexpr double kSlack = 1 + 1e-4;  // 127 levels in float32
  if (name.starts_with("fp16")) {
    return {0x1p-11, 0x1p-38, true};
  }
  if (name.starts_with("bf16")) {
    return {0x1p-8, 0x1p-60, true};
  }
  if (name.starts_with("int8")) {
    return {0, rounding / 127 * kSlack, true};
  }
  if (name.starts_with("int4")) {
    return {0, rounding / 7 * kSlack, true};
  }
  return {};
}

}  // namespace

CodecTrial::CodecTrial(std::shared_ptr<const spi::Codec> codec, const GradientKind& kind)
    : codec_(std::move(codec)), kind_(kind) {
  const std::size_t width = size_of(kind.dtype);
  element_count_ = kind.bytes / width;
  make_parts();
  const std::size_t drawn = element_count_ + kPlaces;
  const std::vector<float> floats = draw(kind.distribution, drawn);
  values_.resize(drawn * width);
  const auto* from = reinterpret_cast<const std::byte*>(floats.data());
  kernels::cast(kind.dtype, values_.data(), DType::kFloat32, from, drawn);
  result_.resize(element_count_ * width);
  if (codec_->traits().feedback) {
    residual_.resize(element_count_);
    left_.resize(element_count_);
  }
}

void CodecTrial::make_parts() {
  const spi::CodecTraits& traits = codec_->traits();
  const std::size_t most = traits.whole_parameter ? kRows * kRowElements : traits.segment_elements;
  std::size_t state = 0;
  std::size_t scratch = 0;
  std::size_t wire = 0;
  std::size_t sums = 0;
  for (std::size_t first = 0; first < element_count_; first += most) {
    Part part;
    part.first = first;
    part.segment.dtype = kind_.dtype;
    part.segment.element_count = std::min(most, element_count_ - first);
    part.segment.seed = first + 1;
    if (traits.whole_parameter) {
      part.segment.row_elements = kRowElements;
      part.segment.element_count -= part.segment.element_count % kRowElements;
      if (part.segment.element_count == 0) {
        break;  // no row any more
      }
    }
    part.state = state;
    part.scratch = scratch;
    part.wire = wire;
    for (unsigned round = 0; round < traits.rounds; ++round) {
      part.wire_room = std::max(part.wire_room, codec_->most_wire_bytes(part.segment, round));
      sums = std::max(sums, codec_->sum_floats(part.segment, round));
    }
    state += codec_->state_floats(part.segment);
    scratch += codec_->scratch_floats(part.segment);
    wire += part.wire_room;
    parts_.push_back(part);
  }
  element_count_ = parts_.empty() ? 0 : parts_.back().first + parts_.back().segment.element_count;
  state_.resize(state);
  next_state_.resize(state);
  scratch_.resize(scratch);
  wires_.resize(wire);
  sums_.resize(sums);
}

const std::byte* CodecTrial::gradient() const {
  return values_.data() + step_ * 16 % kPlaces * size_of(kind_.dtype);
}

spi::CodecMemory CodecTrial::memory(const Part& part) {
  spi::CodecMemory memory;
  if (!residual_.empty()) {
    memory.residual = residual_.data() + part.first;
    memory.left = left_.data() + part.first;
  }
  memory.state = state_.data() + part.state;
  memory.next_state = next_state_.data() + part.state;
  memory.scratch = scratch_.data() + part.scratch;
  return memory;
}

Status CodecTrial::encode(unsigned round) {
  const std::size_t width = size_of(kind_.dtype);
  const std::byte* values = gradient();
  value_squares_ = 0;
  left_squares_ = 0;
  for (Part& part : parts_) {
    STRETTO_TRY_ASSIGN(
        const spi::Encoding done,
        codec_->encode(part.segment,
                       round_of(round),
                       std::span(values + part.first * width, part.segment.element_count * width),
                       memory(part),
                       wires().subspan(part.wire, part.wire_room)));
    part.wire_bytes = done.wire_bytes;
    wire_total_ += done.wire_bytes;
    refused_ += done.refused;
    value_squares_ += done.value_squares;
    left_squares_ += done.left_squares;
  }
  return {};
}

/// What the owner makes of the only wire there is.
Status CodecTrial::conclude(unsigned round) {
  for (Part& part : parts_) {
    const auto sums =
        std::span(sums_.data(), sums_.size()).first(codec_->sum_floats(part.segment, round));
    std::fill(sums.begin(), sums.end(), 0.0F);
    const auto wire = wires().subspan(part.wire, part.wire_room);
    STRETTO_TRY(
        codec_->absorb(part.segment, round_of(round), wire.first(part.wire_bytes), 1, sums));
    STRETTO_TRY_ASSIGN(
        const spi::Encoding done,
        codec_->conclude(part.segment, {round, step_, 1, 1}, sums, 1, spi::CodecMemory(), wire));
    part.wire_bytes = done.wire_bytes;
  }
  return {};
}

Status CodecTrial::decode(unsigned round) {
  const std::size_t width = size_of(kind_.dtype);
  for (const Part& part : parts_) {
    STRETTO_TRY(
        codec_->decode(part.segment,
                       round_of(round),
                       wires().subspan(part.wire, part.wire_bytes),
                       memory(part),
                       std::span(result_.data(), result_.size())
                           .subspan(part.first * width, part.segment.element_count * width)));
  }
  return {};
}

Result<CodecTrial::Times> CodecTrial::step() {
  ++step_;
  wire_total_ = 0;
  refused_ = 0;
  Times times;
  auto start = Clock::now();
  std::memcpy(result_.data(), gradient(), element_count_ * size_of(kind_.dtype));
  times.copy = seconds_since(start);
  residual_.swap(left_);
  state_.swap(next_state_);
  for (unsigned round = 0; round < codec_->traits().rounds; ++round) {
    start = Clock::now();
    STRETTO_TRY(encode(round));
    times.encode += seconds_since(start);
    if (codec_->traits().rounds > 1) {
      STRETTO_TRY(conclude(round));
    }
    start = Clock::now();
    STRETTO_TRY(decode(round));
    times.decode += seconds_since(start);
  }
  return times;
}

/// What a step has to read and write of an element, at least: the gradient and the residual in each
/// round, once what is left, the wire, and a state in and out.  What a cache reads of a line before
/// it writes there is not counted, as it is not for memcpy.
double CodecTrial::touched() const {
  const auto n = static_cast<double>(element_count_);
  const double residual = residual_.empty() ? 0 : sizeof(float);
  const double values = static_cast<double>(size_of(kind_.dtype));
  return codec_->traits().rounds * (values + residual) + residual +
         (static_cast<double>(wire_total_) + 8.0 * static_cast<double>(state_.size())) / n;
}

void CodecTrial::judge_part(const Part& part, CodecFigures& figures) const {
  constexpr std::size_t kBlock = 256;
  const std::size_t n = part.segment.element_count;
  const std::size_t width = size_of(kind_.dtype);
  std::vector<float> x(n);
  std::vector<float> back(n);
  const auto widen = [&](const std::byte* from, std::vector<float>& to) {
    const std::byte* at = from + part.first * width;
    kernels::cast(DType::kFloat32, reinterpret_cast<std::byte*>(to.data()), kind_.dtype, at, n);
  };
  widen(gradient(), x);
  widen(result_.data(), back);
  const Bound bound = bound_of(codec_->traits());
  double squares = 0;
  double left_squares = 0;
  double most = 0;
  double largest = 0;
  for (std::size_t first = 0; first < n; first += kBlock) {
    const std::size_t end = std::min(first + kBlock, n);
    double block = 0;
    for (std::size_t i = first; i < end; ++i) {
      x[i] += residual_.empty() ? 0.0F : residual_.data()[part.first + i];
      block = std::max(block, std::abs(static_cast<double>(x[i])));
    }
    for (std::size_t i = first; i < end; ++i) {
      const double value = x[i];
      const double error = std::abs(value - static_cast<double>(back[i]));
      const double allowed = bound.of_value * std::abs(value) + bound.of_block * block + 0x1p-120;
      figures.bound_ok = figures.bound_ok && (!bound.by_element || error <= allowed);
      squares += value * value;
      left_squares += error * error;
      most = std::max(most, std::isfinite(error) ? error : HUGE_VAL);
    }
    largest = std::max(largest, block);
  }
  // In a narrow result even what the codec says exactly is rounded.
  const double rounding = kind_.dtype == DType::kFloat32 ? 1e-6 : 1e-2;
  const bool shrinks = codec_->traits().error == spi::CodecError::kUnbiased ||
                       left_squares <= squares * (1 + rounding);
  figures.bound_ok = figures.bound_ok && shrinks && std::isfinite(most);
  figures.max_error = std::max(figures.max_error, largest > 0 ? most / largest : most);
}

void CodecTrial::judge(CodecFigures& figures) const {
  for (const Part& part : parts_) {
    judge_part(part, figures);
  }
}

Result<CodecFigures> CodecTrial::measure(std::chrono::duration<double> time) {
  if (element_count_ == 0) {
    return fail(StatusCode::kInvalidArgument, "too few bytes for codec " + codec_->traits().name);
  }
  STRETTO_TRY(step());  // memory that nobody has touched is slow
  std::vector<double> copy;
  std::vector<double> encode;
  std::vector<double> decode;
  const auto start = Clock::now();
  while (copy.size() < 5 || seconds_since(start) < time.count()) {
    STRETTO_TRY_ASSIGN(const Times times, step());
    copy.push_back(times.copy);
    encode.push_back(times.encode);
    decode.push_back(times.decode);
  }
  const double bytes = static_cast<double>(element_count_ * size_of(kind_.dtype));
  CodecFigures figures;
  figures.memcpy_gbps = bytes / median(copy) / 1e9;
  figures.encode_gbps = bytes / median(encode) / 1e9;
  figures.decode_gbps = bytes / median(decode) / 1e9;
  figures.ratio = bytes / static_cast<double>(std::max<std::size_t>(wire_total_, 1));
  figures.touched_bytes_per_element = touched();
  figures.refused = refused_;
  figures.residual_ratio = value_squares_ > 0 ? std::sqrt(left_squares_ / value_squares_) : 0;
  judge(figures);
  return figures;
}

}  // namespace stretto::cli

// SPDX-License-Identifier: Apache-2.0
#include "replay_job.hpp"

#include "base/byte_order.hpp"
#include "base/hash.hpp"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <random>
#include <set>

#include <sys/resource.h>
#include <unistd.h>

namespace stretto::cli {
namespace {

/// A call of ready that takes longer was held up: the accelerator does not make that good.
constexpr std::chrono::nanoseconds kLongCall = std::chrono::microseconds(100);

double milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// The value below which this share of all lies; the same choice of the middle as the peer's.
double quantile(std::vector<double> values, double share) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const auto place = static_cast<std::size_t>(share * static_cast<double>(values.size()));
  return values[std::min(place, values.size() - 1)];
}

/// How far a result may be from the mean, for codecs that only round: the gradients are rounded,
/// and their mean again.
float rounding_bound(std::string_view codec) {
  if (codec.starts_with("fp16")) {
    return 2 * Payload::kLargest * 0x1p-11F;
  }
  return codec.starts_with("bf16") ? 2 * Payload::kLargest * 0x1p-8F : 0.0F;
}

std::vector<std::size_t> elements_of(const std::vector<ReplayLayer>& layers) {
  std::vector<std::size_t> elements;
  for (const ReplayLayer& layer : layers) {
    elements.push_back(layer.elements);
  }
  return elements;
}

}  // namespace

spi::Bytes RankTotals::encode() const {
  ByteWriter writer;
  writer.put(mismatches);
  writer.put(verified_steps);
  writer.put(slept_ms);
  writer.put(wire_mb_total);
  return std::move(writer).take();
}

RankTotals RankTotals::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  RankTotals totals;
  totals.mismatches = reader.get<std::uint64_t>();
  totals.verified_steps = reader.get<std::uint64_t>();
  totals.slept_ms = reader.get<double>();
  totals.wire_mb_total = reader.get<double>();
  return totals;
}

Replay::Replay(const ReplayOptions& options,
               const Context& context,
               std::vector<ReplayLayer> layers,
               std::shared_ptr<Group> group,
               std::unique_ptr<Engine> engine)
    : options_(options),
      context_(context),
      layers_(std::move(layers)),
      group_(std::move(group)),
      engine_(std::move(engine)),
      payload_(options.seed, rank(), group_->size(), elements_of(layers_)) {}

Status Replay::run() {
  const std::size_t all = options_.warmup + options_.steps;
  std::set<std::size_t> verified{0, all - 1};
  if (all > 2) {
    std::mt19937_64 random(options_.seed);  // the same on all ranks
    verified.insert(1 + random() % (all - 2));
  }
  ready_us_.reserve(options_.steps * layers_.size());
  ask_for_precise_sleep();
  TimePoint mark = Clock::now();
  for (std::size_t i = 0; i < all; ++i) {
    const bool measured = i >= options_.warmup;
    const double cpu = cpu_seconds();
    STRETTO_TRY(step(i, measured));
    const TimePoint next = Clock::now();
    if (measured) {
      step_ms_.push_back(milliseconds(next - mark));
      total_ms_ += step_ms_.back();
      cpu_s_ += cpu_seconds() - cpu;
    }
    mark = next;
    show_progress(i + 1, all);
    if (verified.contains(i)) {
      STRETTO_TRY(verify(i));
      mark = Clock::now();
    }
  }
  return {};
}

Status Replay::step(std::uint64_t number, bool measured) {
  STRETTO_TRY(engine_->begin_step({}));
  STRETTO_TRY(compute(number, measured));
  STRETTO_TRY_ASSIGN(const StepReport report, engine_->finish_step());
  all_wire_bytes_ += report.wire_bytes;
  if (measured) {
    payload_bytes_ += report.payload_bytes;
    wire_bytes_ += report.wire_bytes;
    exposed_ms_.push_back(report.exposed_ms);
    hidden_ms_.push_back(report.hidden_ms);
    residual_ratio_.push_back(report.residual_ratio);
  }
  return {};
}

Status Replay::compute(std::uint64_t number, bool measured) {
  accelerator_.restart();
  for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
    accelerator_.compute(layer->forward);
  }
  for (std::size_t p = 0; p < layers_.size(); ++p) {
    accelerator_.compute(layers_[p].backward);
    const TimePoint called = Clock::now();
    STRETTO_TRY(
        engine_->ready(ParameterId{static_cast<std::uint32_t>(p)}, payload_.gradient(p, number)));
    const auto took = Clock::now() - called;
    if (took > kLongCall) {
      accelerator_.hold(took);
    }
    if (measured) {
      ready_us_.push_back(std::chrono::duration<double, std::micro>(took).count());
    }
  }
  const auto slept = accelerator_.finish();
  if (measured) {
    slept_ms_.push_back(milliseconds(slept));
  }
  return {};
}

Status Replay::verify(std::uint64_t number) {
  std::uint64_t hash = 0;
  for (std::size_t p = 0; p < layers_.size(); ++p) {
    const auto id = ParameterId{static_cast<std::uint32_t>(p)};
    const std::byte* result = engine_->result(id);
    const std::string_view codec = engine_->codec(id);
    hash = hash_bytes({result, layers_[p].elements * sizeof(float)}, hash);
    if (codec == "none") {
      totals_.mismatches += payload_.mismatches(p, number, result);
    } else if (const float bound = rounding_bound(codec); bound > 0) {
      totals_.mismatches += payload_.mismatches(p, number, result, bound);
    }
  }
  ++totals_.verified_steps;
  return compare_replicas(hash);
}

/// All ranks must have the same bits.  They go on together, or those that were done first would
/// count the others' checking as a wait.
Status Replay::compare_replicas(std::uint64_t hash) {
  ByteWriter writer;
  writer.put(hash);
  STRETTO_TRY_ASSIGN(const auto blobs,
                     group_->control().all_gather("the end of a verification",
                                                  writer.bytes(),
                                                  Deadline::after(engine_->options().timeout)));
  if (ByteReader(blobs[0]).get<std::uint64_t>() != hash) {
    ++totals_.mismatches;
  }
  return {};
}

void Replay::show_progress(std::size_t done, std::size_t all) const {
  if (rank() == 0 && !context_.quiet && ::isatty(STDERR_FILENO) == 1) {
    std::cerr << "\rstep " << done << "/" << all << (done == all ? "\n" : "") << std::flush;
  }
}

Status Replay::gather() {
  totals_.slept_ms = *std::min_element(slept_ms_.begin(), slept_ms_.end());
  totals_.wire_mb_total = static_cast<double>(all_wire_bytes_) / 1e6;
  STRETTO_TRY_ASSIGN(
      const auto blobs,
      group_->control().all_gather(
          "the results", totals_.encode(), Deadline::after(engine_->options().timeout)));
  totals_.mismatches = 0;
  for (const spi::Bytes& blob : blobs) {
    const RankTotals one = RankTotals::decode(blob);
    totals_.mismatches += one.mismatches;
    totals_.verified_steps = std::min(totals_.verified_steps, one.verified_steps);
    totals_.slept_ms = std::min(totals_.slept_ms, one.slept_ms);
    wire_mb_by_rank_.push_back(one.wire_mb_total);
  }
  return {};
}

nlohmann::ordered_json Replay::results() const {
  std::chrono::nanoseconds compute{0};
  double elements = 0;
  for (const ReplayLayer& layer : layers_) {
    compute += layer.forward + layer.backward;
    elements += static_cast<double>(layer.elements);
  }
  const auto steps = static_cast<double>(options_.steps);
  const std::string in_use = engine_->describe();  // "ring over tcp, order native"
  const std::size_t over = in_use.find(" over ");
  const std::size_t order = in_use.find(", order ");  // not said of the usual one
  const auto [least, most] = std::minmax_element(step_ms_.begin(), step_ms_.end());
  return {
      {"ranks", group_->size()},
      {"profile", std::filesystem::path(options_.profile).filename().string()},
      {"gradient_mb", elements * 4 / 1e6},
      {"compute_ms", milliseconds(compute)},
      {"median_ms", quantile(step_ms_, 0.5)},
      {"min_ms", *least},
      {"max_ms", *most},
      {"exposed_ms", quantile(exposed_ms_, 0.5)},
      {"hidden_ms", quantile(hidden_ms_, 0.5)},
      {"slept_ms", totals_.slept_ms},
      {"total_ms", total_ms_},
      {"steps", options_.steps},
      {"wire_mb", static_cast<double>(payload_bytes_) / steps / 1e6},
      {"wire_mb_with_headers", static_cast<double>(wire_bytes_) / steps / 1e6},
      {"wire_mb_total", static_cast<double>(all_wire_bytes_) / 1e6},
      {"wire_mb_total_by_rank", wire_mb_by_rank_},
      {"cpu_s", cpu_s_},
      {"ready_p99_us", quantile(ready_us_, 0.99)},
      {"ready_max_us", quantile(ready_us_, 1)},
      {"verified_steps", totals_.verified_steps},
      {"mismatches", totals_.mismatches},
      {"schedule", to_string(engine_->options().schedule)},
      {"codec", engine_->options().codec},
      {"residual_ratio", quantile(residual_ratio_, 0.5)},
      {"exchange", in_use.substr(0, over)},
      {"order", order == std::string::npos ? "rank" : in_use.substr(order + 8)},
      {"transport", over == std::string::npos ? "" : in_use.substr(over + 6, order - over - 6)},
      {"chunk_bytes", engine_->options().chunk_bytes},
      {"per_parameter", engine_->options().chunk_bytes == 0},
  };
}

}  // namespace stretto::cli

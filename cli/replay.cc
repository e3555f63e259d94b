// SPDX-License-Identifier: Apache-2.0
//
// stretto replay: one rank of a training job whose computing is slept and whose gradients are moved
// for real.
//
// A step:  forward sleeps layer by layer, input layer first; backward sleeps layer by layer, output
// layer first, and says ready(parameter) after each; finish_step waits for what is under way.
// step_ms: from one start of forward to the next, without a barrier.  Three steps are verified, and
//          for that long the clock stands still on all ranks.
#include "base/byte_order.hpp"
#include "base/hash.hpp"
#include "command.hpp"
#include "payload.hpp"
#include "profile.hpp"
#include "virtual_accelerator.hpp"

#include "stretto/engine.hpp"
#include "stretto/group.hpp"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <random>
#include <set>

#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <unistd.h>

namespace stretto::cli {
namespace {

/// A call of ready that takes longer was held up: the accelerator does not make that good.
constexpr std::chrono::nanoseconds kLongCall = std::chrono::microseconds(100);

struct ReplayOptions {
  std::string profile;
  ReplayScale scale;
  std::string schedule;  // empty: as the environment says
  std::size_t steps = 12;
  std::size_t warmup = 4;
  std::uint64_t seed = 1;
  bool per_parameter = false;
};

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

/// What one rank measured; goes to rank 0 in this form, and comes from other hosts.
struct RankTotals {
  std::uint64_t mismatches = 0;
  std::uint64_t verified_steps = 0;
  double slept_ms = 0;       // least of the measured steps
  double wire_mb_total = 0;  // with headers, over all steps

  spi::Bytes encode() const {
    ByteWriter writer;
    writer.put(mismatches);
    writer.put(verified_steps);
    writer.put(slept_ms);
    writer.put(wire_mb_total);
    return std::move(writer).take();
  }
  static RankTotals decode(std::span<const std::byte> bytes) {
    ByteReader reader(bytes);
    RankTotals totals;
    totals.mismatches = reader.get<std::uint64_t>();
    totals.verified_steps = reader.get<std::uint64_t>();
    totals.slept_ms = reader.get<double>();
    totals.wire_mb_total = reader.get<double>();
    return totals;
  }
};

/// The steps of one rank and what they cost.
///
/// Threading: confined(main thread).
class Replay {
 public:
  Replay(const ReplayOptions& options,
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

  Status run();
  /// Sums over all ranks; the same on all.
  Status gather();
  nlohmann::ordered_json results() const;
  std::uint64_t mismatches() const { return totals_.mismatches; }
  Engine& engine() { return *engine_; }

 private:
  static std::vector<std::size_t> elements_of(const std::vector<ReplayLayer>& layers) {
    std::vector<std::size_t> elements;
    for (const ReplayLayer& layer : layers) {
      elements.push_back(layer.elements);
    }
    return elements;
  }
  std::size_t rank() const { return index_of(group_->rank()); }
  Status step(std::uint64_t number, bool measured);
  Status compute(std::uint64_t number, bool measured);
  Status verify(std::uint64_t number);
  void show_progress(std::size_t done, std::size_t all) const;

  ReplayOptions options_;
  const Context& context_;
  std::vector<ReplayLayer> layers_;  // output layer first: as parameters are numbered
  std::shared_ptr<Group> group_;     // shared with the engine
  std::unique_ptr<Engine> engine_;
  Payload payload_;
  VirtualAccelerator accelerator_;

  std::vector<double> step_ms_;
  std::vector<double> slept_ms_;
  std::vector<double> exposed_ms_;
  std::vector<double> hidden_ms_;
  std::vector<double> ready_us_;
  std::uint64_t payload_bytes_ = 0;  // of measured steps
  std::uint64_t wire_bytes_ = 0;     // of measured steps
  std::uint64_t all_wire_bytes_ = 0;
  double total_ms_ = 0;
  double cpu_s_ = 0;
  RankTotals totals_;
  std::vector<double> wire_mb_by_rank_;
};

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
  for (std::size_t p = 0; p < layers_.size(); ++p) {
    totals_.mismatches +=
        payload_.mismatches(p, number, engine_->result(ParameterId{static_cast<std::uint32_t>(p)}));
  }
  ++totals_.verified_steps;
  // All go on together, or those that were done first would count the others' checking as a wait.
  STRETTO_TRY(group_->control().all_gather(
      "the end of a verification", {}, Deadline::after(engine_->options().timeout)));
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
  const std::string in_use = engine_->describe();  // "owner over tcp"
  const std::size_t over = in_use.find(" over ");
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
      {"codec", "none"},
      {"exchange", in_use.substr(0, over)},
      {"transport", over == std::string::npos ? "" : in_use.substr(over + 6)},
      {"chunk_bytes", engine_->options().chunk_bytes},
      {"per_parameter", engine_->options().chunk_bytes == 0},
  };
}

/// Ranks that sleep for different times or make other payloads would measure nothing.
Status agree_on_options(Group& group,
                        const ReplayOptions& options,
                        const std::vector<ReplayLayer>& layers) {
  ByteWriter writer;
  for (const ReplayLayer& layer : layers) {
    writer.put(static_cast<std::uint64_t>(layer.forward.count()));
    writer.put(static_cast<std::uint64_t>(layer.backward.count()));
    writer.put(static_cast<std::uint64_t>(layer.elements));
  }
  for (const std::uint64_t value :
       {std::uint64_t{options.steps}, std::uint64_t{options.warmup}, options.seed}) {
    writer.put(value);
  }
  const std::uint64_t hash = hash_bytes(writer.bytes());
  ByteWriter mine;
  mine.put(hash);
  STRETTO_TRY_ASSIGN(
      const auto blobs,
      group.control().all_gather(
          "the options of the replay", mine.bytes(), Deadline::after(group.options().timeout)));
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    if (ByteReader(blobs[rank]).get<std::uint64_t>() != hash) {
      return {StatusCode::kInvalidArgument,
              "rank " + std::to_string(rank) + " and rank " +
                  std::to_string(index_of(group.rank())) +
                  " differ in profile, scales, steps or seed; start all with the same options"};
    }
  }
  return {};
}

Result<std::unique_ptr<Engine>> make_engine(const std::shared_ptr<Group>& group,
                                            const ReplayOptions& options,
                                            const std::vector<ReplayLayer>& layers) {
  STRETTO_TRY_ASSIGN(EngineOptions settings, EngineOptions::from_environment());
  if (!options.schedule.empty()) {
    STRETTO_TRY_ASSIGN(settings.schedule, parse_schedule(options.schedule));
  }
  if (options.per_parameter) {
    settings.chunk_bytes = 0;
  }
  settings.check_replicas_every = 0;  // there are no weights
  STRETTO_TRY_ASSIGN(auto engine, Engine::create(group, settings));
  for (std::size_t p = 0; p < layers.size(); ++p) {
    STRETTO_TRY(engine->add_parameter(
        {"layer" + std::to_string(p), {static_cast<std::int64_t>(layers[p].elements)}}));
  }
  STRETTO_TRY(engine->commit());
  return engine;
}

Status check(const ReplayOptions& options, const std::vector<ReplayLayer>& layers) {
  constexpr double kMostElements = 1e10;
  if (options.steps == 0) {
    return {StatusCode::kInvalidArgument, "--steps is 0; nothing would be measured"};
  }
  double elements = 0;
  for (const ReplayLayer& layer : layers) {
    elements += static_cast<double>(layer.elements);
  }
  if (elements > kMostElements) {
    return {StatusCode::kInvalidArgument,
            "the gradient would have " + std::to_string(elements * 4e-9) +
                " GB; choose a smaller --byte-scale"};
  }
  return {};
}

void print(const nlohmann::ordered_json& results, bool json) {
  if (json) {
    std::cout << results.dump() << std::endl;
    return;
  }
  for (const auto& [name, value] : results.items()) {
    std::cout << name << std::string(name.size() < 24 ? 24 - name.size() : 1, ' ')
              << (value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
  }
  std::cout << std::flush;
}

Status replay(const ReplayOptions& options, Context& context) {
  STRETTO_TRY(options.scale.validate());
  STRETTO_TRY_ASSIGN(const auto profile, read_profile(options.profile));
  auto layers = scale_profile(profile, options.scale);
  STRETTO_TRY(check(options, layers));
  STRETTO_TRY_ASSIGN(const GroupOptions group_options, GroupOptions::from_environment());
  STRETTO_TRY_ASSIGN(auto group, Group::join(group_options));
  STRETTO_TRY(agree_on_options(*group, options, layers));
  STRETTO_TRY_ASSIGN(auto engine, make_engine(group, options, layers));
  const bool speaks = index_of(group->rank()) == 0;
  if (speaks && !context.quiet) {
    complain("replay",
             std::to_string(layers.size()) + " layers, " + std::to_string(group->size()) +
                 " ranks, " + engine->describe());
  }
  Replay job(options, context, std::move(layers), group, std::move(engine));
  STRETTO_TRY(job.run());
  STRETTO_TRY(job.gather());
  if (speaks) {
    print(job.results(), context.json);
  }
  STRETTO_TRY(job.engine().shutdown());
  group->leave();
  if (job.mismatches() > 0) {
    if (speaks) {
      complain("replay",
               std::to_string(job.mismatches()) +
                   " elements were not the mean of all ranks' gradients: a bug in Stretto, or "
                   "memory that fails; please report it");
    }
    context.exit_code = kExitCheckFailed;
  }
  return {};
}

}  // namespace

void add_replay(CLI::App& app, Context& context) {
  // Shared by the parser, which fills it, and the callback, which reads it.
  const auto options = std::make_shared<ReplayOptions>();
  CLI::App* command =
      app.add_subcommand("replay", "Sleep a model's computing and move its gradients for real");
  command->add_option("--profile", options->profile, "Times and bytes by layer (bench/profiles)")
      ->required();
  command->add_option("--time-scale", options->scale.time, "Multiply every compute time")
      ->capture_default_str();
  command->add_option("--byte-scale", options->scale.bytes, "Multiply every gradient's size")
      ->capture_default_str();
  command
      ->add_option("--forward-ratio", options->scale.forward_ratio, "Forward time / backward time")
      ->capture_default_str();
  command->add_option("--schedule", options->schedule, "backward (default) or sequential");
  command->add_option("--codec", "Only none in this build")->check(CLI::IsMember({"none"}));
  command->add_option("--steps", options->steps, "Steps that are measured")->capture_default_str();
  command->add_option("--warmup", options->warmup, "Steps before them")->capture_default_str();
  command->add_option("--seed", options->seed, "Of payloads, and of which step is verified")
      ->capture_default_str();
  command->add_flag("--per-parameter",
                    options->per_parameter,
                    "One message per parameter: to see what joining them brings");
  command->footer(
      "Examples:\n"
      "  stretto run -n 2 -- stretto replay --profile bench/profiles/resnet50.bk.log\n"
      "  stretto run -n 4 --link 500mbit -- stretto replay --json --schedule sequential \\\n"
      "      --profile bench/profiles/resnet50.bk.log --byte-scale 0.15\n"
      "Runs as one rank of a job; rank 0 prints the results.  Ends with 1 if a result was wrong.");
  command->callback([options, &context] {
    if (const Status status = replay(*options, context); !status.is_ok()) {
      fail_with(context, "replay", status);
    }
  });
}

}  // namespace stretto::cli

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
#include "replay_job.hpp"

#include <iostream>
#include <memory>

namespace stretto::cli {
namespace {

/// Ranks that sleep for different times or make other payloads would measure nothing.  Other sizes
/// are left to the engine, which names the parameter.
Status agree_on_options(Group& group,
                        const ReplayOptions& options,
                        const std::vector<ReplayLayer>& layers) {
  ByteWriter writer;
  for (const ReplayLayer& layer : layers) {
    writer.put(static_cast<std::uint64_t>(layer.forward.count()));
    writer.put(static_cast<std::uint64_t>(layer.backward.count()));
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
  if (!options.exchange.empty()) {
    STRETTO_TRY_ASSIGN(settings.exchange, parse_exchange(options.exchange));
  }
  if (!options.order.empty()) {
    STRETTO_TRY_ASSIGN(settings.order, parse_order(options.order));
  }
  if (!options.codec.empty()) {
    settings.codec = options.codec;
  }
  if (options.per_parameter) {
    settings.chunk_bytes = 0;
  }
  settings.check_replicas_every = 0;  // there are no weights
  STRETTO_TRY_ASSIGN(auto engine, Engine::create(group, settings));
  for (std::size_t p = 0; p < layers.size(); ++p) {
    STRETTO_TRY(engine->add_parameter(
        {"layer" + std::to_string(p), {1, static_cast<std::int64_t>(layers[p].elements)}}));
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
  command->add_option(
      "--exchange", options->exchange, "auto (default), owner, one-hop, shared, ring or mpi");
  command->add_option(
      "--order", options->order, "Of sums: rank (default), or any for ring and mpi");
  command->add_option("--codec",
                      options->codec,
                      "none (default), fp16, int8, topk:1%, ... (see stretto bench codec --help)");
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
      "  stretto run -n 4 --link 100mbit -- stretto replay --codec int8 \\\n"
      "      --profile bench/profiles/resnet50.bk.log --byte-scale 0.6\n"
      "Runs as one rank of a job; rank 0 prints the results.  Ends with 1 if a result was wrong:\n"
      "without a codec every element must be exact, with one all ranks must have the same bits "
      "and\n"
      "codecs that only round (fp16, bf16) keep to their error bound.");
  command->callback([options, &context] {
    if (const Status status = replay(*options, context); !status.is_ok()) {
      fail_with(context, "replay", status);
    }
  });
}

}  // namespace stretto::cli

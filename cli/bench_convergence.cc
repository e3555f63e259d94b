// SPDX-License-Identifier: Apache-2.0
//
// stretto bench convergence: whether training with compressed gradients comes to what it comes to
// with float32, on a small net that learns in a second (small_training.hpp).
//
// For each seed a training with float32 and one with each codec, from the same weights and inputs.
// A codec's difference is the mean over the seeds of accuracy - float32's accuracy, in points, with
// two standard errors.  Nothing is sent: what the ranks would encode, add up and decode goes
// through memory.  Of a model of yours this says nothing; bench/convergence.py trains real ones.
#include "codec/factory.hpp"
#include "command.hpp"
#include "small_training.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace stretto::cli {
namespace {

constexpr double kMargin = 0.3;  // points that do not count

struct ConvergenceOptions {
  std::vector<std::string> codecs;  ///< empty: all
  std::size_t seeds = 5;
  SmallTraining training;
};

/// One codec, or float32, over all seeds.
struct Series {
  std::string codec;
  std::vector<SmallOutcome> outcomes;
};

struct Difference {
  double mean = 0;        ///< points
  double two_errors = 0;  ///< two standard errors of it
  const char* verdict = "within";
};

Difference difference(const Series& codec, const Series& plain) {
  const auto count = static_cast<double>(plain.outcomes.size());
  std::vector<double> points;
  Difference found;
  for (std::size_t i = 0; i < plain.outcomes.size(); ++i) {
    points.push_back(100 * (codec.outcomes[i].accuracy - plain.outcomes[i].accuracy));
    found.mean += points.back() / count;
  }
  double squares = 0;
  for (const double point : points) {
    squares += (point - found.mean) * (point - found.mean);
  }
  found.two_errors = 2 * std::sqrt(squares / (count - 1) / count);
  if (std::abs(found.mean) > std::max(kMargin, found.two_errors)) {
    found.verdict = found.mean < 0 ? "worse" : "better";
  }
  return found;
}

double mean(const Series& series, double SmallOutcome::*field) {
  double sum = 0;
  for (const SmallOutcome& outcome : series.outcomes) {
    sum += outcome.*field;
  }
  return sum / static_cast<double>(series.outcomes.size());
}

Result<Series> train(const ConvergenceOptions& options,
                     const std::string& name,
                     const std::shared_ptr<const spi::Codec>& codec) {
  Series series{name, {}};
  for (std::size_t seed = 1; seed <= options.seeds; ++seed) {
    SmallTraining training = options.training;
    training.seed = seed;
    STRETTO_TRY_ASSIGN(const SmallOutcome outcome, train_small(training, codec));
    series.outcomes.push_back(outcome);
  }
  return series;
}

/// The table's line, or the document's part.
void print(const Series& series, const Series& plain, nlohmann::ordered_json* json) {
  const Difference found = difference(series, plain);
  const double accuracy = 100 * mean(series, &SmallOutcome::accuracy);
  const double loss = mean(series, &SmallOutcome::loss);
  const double ratio = mean(plain, &SmallOutcome::wire_bytes_per_step) /
                       mean(series, &SmallOutcome::wire_bytes_per_step);
  if (json == nullptr) {
    std::printf("%-24s  %8.2f  %7.4f  %6.1f  %+6.2f (%+.2f to %+.2f)  %s\n",
                series.codec.c_str(),
                accuracy,
                loss,
                ratio,
                found.mean,
                found.mean - found.two_errors,
                found.mean + found.two_errors,
                found.verdict);
    static_cast<void>(std::fflush(stdout));
    return;
  }
  nlohmann::ordered_json line{{"codec", series.codec},
                              {"accuracy", accuracy},
                              {"loss", loss},
                              {"ratio", ratio},
                              {"difference", found.mean},
                              {"two_errors", found.two_errors},
                              {"verdict", found.verdict},
                              {"accuracies", nlohmann::ordered_json::array()}};
  for (const SmallOutcome& outcome : series.outcomes) {
    line["accuracies"].push_back(100 * outcome.accuracy);
  }
  json->push_back(std::move(line));
}

Result<int> compare(const ConvergenceOptions& options, const Context& context) {
  std::vector<std::shared_ptr<const spi::Codec>> codecs;
  for (const std::string& name : options.codecs) {
    STRETTO_TRY_ASSIGN(auto codec, codec::make_codec(name));
    codecs.push_back(std::move(codec));
  }
  nlohmann::ordered_json lines = nlohmann::ordered_json::array();
  nlohmann::ordered_json* const json = context.json ? &lines : nullptr;
  if (json == nullptr) {
    std::printf("a net of 9,610 weights, %zu ranks, %zu steps, %zu seeds\n",
                options.training.ranks,
                options.training.steps,
                options.seeds);
    std::printf("codec                     accuracy     loss   ratio  points against float32\n");
  }
  STRETTO_TRY_ASSIGN(const Series plain, train(options, "float32", nullptr));
  print(plain, plain, json);
  bool worse = false;
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    STRETTO_TRY_ASSIGN(const Series series, train(options, options.codecs[i], codecs[i]));
    print(series, plain, json);
    worse = worse || difference(series, plain).verdict == std::string_view("worse");
  }
  if (json != nullptr) {
    std::cout << lines.dump() << std::endl;
  }
  return worse ? kExitCheckFailed : kExitOk;
}

}  // namespace

void add_bench_convergence(CLI::App& bench, Context& context) {
  // Shared by the parser, which fills it, and the callback, which reads it.
  const auto options = std::make_shared<ConvergenceOptions>();
  CLI::App* command = bench.add_subcommand(
      "convergence", "What compression does to the accuracy of a small net, in seconds");
  command
      ->add_option("--codec", options->codecs, "Codecs to compare with float32 [all, by default]")
      ->delimiter(',');
  command->add_option("--seeds", options->seeds, "Trainings of each")
      ->check(CLI::Range(2, 100))
      ->capture_default_str();
  command->add_option("-n,--ranks", options->training.ranks, "Ranks, all in this process")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--steps", options->training.steps, "Steps of each training")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  command->footer(
      "Examples:\n"
      "  stretto bench convergence\n"
      "  stretto bench convergence --codec powersgd:1,powersgd:4 --codec powersgd:4:feedback=off\n"
      "  stretto bench convergence --seeds 20 --json\n"
      "A codec is `within` if it is at most 0.3 points, or two standard errors, from float32.\n"
      "Ends with 1 if one is worse.  bench/convergence.py trains real models.");
  command->callback([options, &context] {
    if (options->codecs.empty()) {
      const auto names = codec::codec_names();
      options->codecs.assign(names.begin(), names.end());
    }
    const auto code = compare(*options, context);
    if (code) {
      context.exit_code = *code;
    } else {
      fail_with(context, "bench convergence", code.error());
    }
  });
}

}  // namespace stretto::cli

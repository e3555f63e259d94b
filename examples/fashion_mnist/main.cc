// SPDX-License-Identifier: Apache-2.0
// Trains on Fashion-MNIST and says what the network cost.  The training loop is in trainer.cc.
#include "dataset.hpp"
#include "models.hpp"
#include "options.hpp"
#include "summary.hpp"
#include "task.hpp"
#include "trainer.hpp"

#include "stretto/libtorch.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

namespace {

using fashion_mnist::Options;
using fashion_mnist::StepFigures;
using fashion_mnist::Summary;
using fashion_mnist::Trainer;
using stretto::Status;

constexpr std::size_t kBlock = 20;  // steps of one schedule before the other's turn

/// A net in training and what its steps took.
struct Run {
  std::unique_ptr<Trainer> trainer;
  std::vector<StepFigures> steps;
};

int code_for(const stretto::Status& status) {
  switch (status.code()) {
    case stretto::StatusCode::kPeerLost:
      return 4;
    case stretto::StatusCode::kUnavailable:
    case stretto::StatusCode::kDeadlineExceeded:
      return 3;
    case stretto::StatusCode::kInternal:
      return 70;
    default:
      return 1;
  }
}

int end_with(const stretto::Status& status) {
  std::fprintf(stderr, "fashion_mnist: %s\n", status.to_string().c_str());
  return code_for(status);
}

/// Saves; a checkpoint that cannot be written is no reason to lose the training.
void save(const Options& options, Trainer& trainer) {
  if (options.checkpoint.empty()) {
    return;
  }
  try {
    trainer.save(options.checkpoint);
  } catch (const stretto::libtorch::Error& error) {
    std::fprintf(stderr,
                 "fashion_mnist: no checkpoint after step %llu: %s\n",
                 static_cast<unsigned long long>(trainer.steps_done()),
                 error.status().to_string().c_str());
  }
}

void train(const Options& options, std::vector<Run>& runs, std::size_t rank, std::size_t world) {
  using fashion_mnist::Progress;
  Trainer& first = *runs.front().trainer;
  const std::size_t total = first.total_steps();
  Progress progress(
      rank == 0 ? Progress::Shown::kYes : Progress::Shown::kNo, total, options.batch * world);
  for (std::size_t done = first.steps_done(); done < total;) {
    const std::size_t block = std::min(kBlock, total - done);
    for (auto& run : runs) {
      for (std::size_t i = 0; i < block; ++i) {
        const StepFigures step = run.trainer->step();
        if (done + i >= options.warmup) {
          run.steps.push_back(step);
        }
        if (&run == &runs.front()) {
          progress.update(done + i + 1, step);
          if ((done + i + 1) % first.steps_per_epoch() == 0 && done + i + 1 != total) {
            save(options, first);
          }
        }
      }
    }
    done += block;
  }
  progress.end();
  save(options, first);
}

/// In the words of bench/peers/ddp_train.py: bench/train.py holds them against each other.
std::string optimizer_of(const Options& options) {
  std::array<char, 64> text{};
  if (options.optimizer == "adam") {
    std::snprintf(text.data(), text.size(), "adam %g", options.learning_rate);
    return text.data();
  }
  std::snprintf(text.data(), text.size(), "sgd %g %g", options.learning_rate, options.momentum);
  return text.data();
}

nlohmann::json json_of(const Options& options,
                       const Summary& summary,
                       std::size_t world,
                       std::size_t elements) {
  nlohmann::json json{{"peer", "stretto"},
                      {"model", options.model},
                      {"ranks", world},
                      {"batch", options.batch},
                      {"steps", summary.steps},
                      {"warmup", options.warmup},
                      {"optimizer", optimizer_of(options)},
                      {"zero_grad", "none"},
                      {"threads", at::get_num_threads()},
                      {"schedule", summary.schedule},
                      {"gradient_mb", 4 * double(elements) / 1e6},
                      {"median_ms", summary.step_ms},
                      {"min_ms", summary.min_ms},
                      {"max_ms", summary.max_ms},
                      {"compute_ms", summary.compute_ms},
                      {"exposed_ms", summary.exposed_ms},
                      {"hidden_ms", summary.hidden_ms},
                      {"bytes_per_step", summary.bytes_per_step},
                      {"images_per_s", summary.images_per_s},
                      {"total_s", summary.total_s},
                      {"loss", summary.loss},
                      {"weight_hash", summary.weight_hash},
                      {"accuracy", nullptr},
                      {"test_loss", nullptr}};
  if (summary.accuracy) {
    json["accuracy"] = *summary.accuracy;
    json["test_loss"] = *summary.test_loss;
  }
  return json;
}

/// Judges the nets and prints what there is to say.
void report(const Options& options, std::vector<Run>& runs, std::size_t rank, std::size_t world) {
  const std::size_t count = options.test_count.value_or(0);
  std::vector<Summary> summaries;
  for (auto& run : runs) {
    Summary summary = summarise(run.steps, options.batch * (options.exchange ? world : 1));
    summary.schedule = run.trainer->schedule();
    summary.weight_hash = run.trainer->weight_hash();
    if (count > 0) {
      const fashion_mnist::Judgement judgement = run.trainer->test(count);
      summary.accuracy = judgement.accuracy;
      summary.test_loss = judgement.loss;
    }
    if (options.hash) {
      std::printf("weights of rank %zu (%s): %016llx\n",
                  rank,
                  summary.schedule.c_str(),
                  static_cast<unsigned long long>(summary.weight_hash));
    }
    summaries.push_back(std::move(summary));
  }
  if (rank != 0 && options.exchange) {
    return;
  }
  if (!options.json) {
    std::fputs(table_of(summaries).c_str(), stdout);
    return;
  }
  for (const auto& summary : summaries) {
    std::puts(json_of(options, summary, world, runs.front().trainer->parameter_elements())
                  .dump()
                  .c_str());
  }
}

/// What there is to learn from, and the tasks that it makes.
struct Data {
  fashion_mnist::Dataset pictures;
  fashion_mnist::Text text;

  Status load(const Options& options) {
    if (options.model == "transformer") {
      STRETTO_TRY_ASSIGN(text, fashion_mnist::load_text(options.data, fashion_mnist::kContext + 1));
    } else {
      STRETTO_TRY_ASSIGN(pictures, fashion_mnist::load(options.data));
    }
    return {};
  }
  std::unique_ptr<fashion_mnist::Task> task(const Options& options,
                                            const stretto::GroupOptions& place) const {
    return options.model == "transformer"
               ? fashion_mnist::make_text_task(text, options, place.rank, place.size)
               : fashion_mnist::make_picture_task(pictures, options, place.rank, place.size);
  }
};

int run(const Options& options) {
  Data data;
  if (const Status loaded = data.load(options); !loaded.is_ok()) {
    return end_with(loaded);
  }
  at::set_num_threads(1);  // ranks share the processor; each has its own core at best
  const auto place = stretto::GroupOptions::from_environment();
  if (!place) {
    return end_with(place.error());
  }
  std::shared_ptr<stretto::Group> group;
  if (options.exchange && place->size > 1) {
    group = stretto::libtorch::join();
  }
  auto engine = stretto::EngineOptions::from_environment();
  if (!engine) {
    return end_with(engine.error());
  }
  if (!options.trace.empty()) {
    engine->trace_file = options.trace;
  }
  std::vector<Run> runs(1);
  runs[0].trainer = std::make_unique<Trainer>(
      options, data.task(options, *place), group, place->rank, place->size, *engine);
  if (options.compare_sequential && group != nullptr) {
    engine->schedule = stretto::Schedule::kSequential;
    engine->trace_file.clear();
    runs.push_back(
        {std::make_unique<Trainer>(
             options, data.task(options, *place), group, place->rank, place->size, *engine),
         {}});
  }
  train(options, runs, place->rank, place->size);
  report(options, runs, place->rank, place->size);
  for (auto& each : runs) {
    each.trainer->shutdown();
  }
  if (group != nullptr) {
    group->leave();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (const auto code = fashion_mnist::parse(argc, argv, options)) {
    return *code;
  }
  try {
    return run(options);
  } catch (const stretto::libtorch::Error& error) {
    return end_with(error.status());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fashion_mnist: %s\n", error.what());
    return 70;
  }
}

// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <iostream>

#include <CLI/CLI.hpp>

namespace fashion_mnist {
namespace {

constexpr int kUsage = 2;
constexpr double kLearningRate = 0.05;
constexpr double kResNetLearningRate = 0.02;
constexpr double kTransformerLearningRate = 0.1;
constexpr double kAdamLearningRate = 0.001;
constexpr std::size_t kTestPictures = 10'000;
constexpr std::size_t kTestWindows = 400;

/// Fills in what was not given and depends on the model.
void complete(Options& options) {
  const bool residual = options.model == "resnet18";
  const bool text = options.model == "transformer";
  if (options.learning_rate == 0) {
    options.learning_rate =
        residual ? kResNetLearningRate : (text ? kTransformerLearningRate : kLearningRate);
    if (options.optimizer == "adam") {
      options.learning_rate = kAdamLearningRate;
    }
  }
  if (!options.test_count) {
    options.test_count = residual ? 0 : (text ? kTestWindows : kTestPictures);
  }
  if (options.data.empty() && !text) {
    options.data = "/usr/share/datasets/fashion-mnist";
  }
}

}  // namespace

std::optional<int> parse(int argc, char** argv, Options& options) {
  CLI::App app("Trains a net on Fashion-MNIST, alone or with several ranks.");
  app.footer(
      "Examples:\n"
      "  cd build/release    # where ./demo has built both programs\n"
      "  examples/fashion_mnist\n"
      "  cli/stretto run -n 2 --link 1gbit -- examples/fashion_mnist --compare-sequential\n"
      "  cli/stretto run -n 2 -- examples/fashion_mnist --by-class\n"
      "  cli/stretto run -n 2 -- examples/fashion_mnist --model resnet18 --batch 16 --steps 20 \\\n"
      "      --warmup 4 --json");
  // The last one counts, so that ./demo can have defaults of its own.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--model", options.model, "cnn, mlp, resnet18, or transformer, on text")
      ->check(CLI::IsMember({"cnn", "mlp", "resnet18", "transformer"}))
      ->capture_default_str();
  auto* epochs =
      app.add_option("--epochs", options.epochs, "Times through the data")->capture_default_str();
  app.add_option("--steps", options.steps, "Steps, instead of epochs")->excludes(epochs);
  app.add_option("--warmup", options.warmup, "Steps before those, which are not timed");
  app.add_option(
         "--batch", options.batch, "Pictures, or windows of 128 characters, per rank and step")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--optimizer", options.optimizer, "sgd or adam")
      ->check(CLI::IsMember({"sgd", "adam"}))
      ->capture_default_str();
  app.add_option("--lr",
                 options.learning_rate,
                 "Learning rate [0.05; resnet18: 0.02; transformer: 0.1; adam: 0.001]")
      ->check(CLI::PositiveNumber);
  app.add_flag(
      "--decay",
      options.decay,
      "Let the learning rate rise in a tenth of all steps, then fall to 0 as half a cosine");
  app.add_option("--momentum", options.momentum, "Momentum of SGD")->capture_default_str();
  app.add_option("--data",
                 options.data,
                 "Folder with the dataset's four files [/usr/share/datasets/fashion-mnist]; "
                 "transformer: a file of plain text");
  auto* by_class = app.add_flag_callback(
      "--by-class",
      [&options] { options.sharding = Sharding::kByClass; },
      "Give every rank classes of its own (2 ranks: 0-4 and 5-9)");
  app.add_flag(
      "!--no-exchange", options.exchange, "Let every rank train alone, to see what is lost");
  app.add_flag("--compare-sequential",
               options.compare_sequential,
               "Train the same under the sequential schedule as well, in alternating blocks");
  auto* checkpoint =
      app.add_option("--checkpoint", options.checkpoint, "Save here after each epoch");
  app.add_flag("--resume", options.resume, "Go on from the checkpoint")->needs(checkpoint);
  app.add_option("--trace", options.trace, "Write a Chrome trace here");
  app.add_flag("--json", options.json, "Print one JSON line instead of tables");
  app.add_flag("--hash", options.hash, "Print a hash of the weights on every rank");
  app.add_flag("--flip-bit",
               options.flip_bit,
               "Flip one bit of one gradient of the last rank, to see that the hash is another");
  app.add_option("--seed", options.seed, "Of weights and of the order of pictures")
      ->capture_default_str();
  app.add_option(
      "--test",
      options.test_count,
      "Test pictures or windows to judge by [all pictures; resnet18: none; transformer: 400]");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  if (options.model == "transformer" && (options.data.empty() || by_class->count() > 0)) {
    std::cerr << "--model transformer learns from a text: say --data FILE, and not --by-class\n";
    return kUsage;
  }
  complete(options);
  return std::nullopt;
}

}  // namespace fashion_mnist

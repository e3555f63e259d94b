// SPDX-License-Identifier: Apache-2.0
#include "task.hpp"

#include "models.hpp"
#include "sampler.hpp"

#include <algorithm>

namespace fashion_mnist {
namespace {

class PictureTask final : public Task {
 public:
  PictureTask(const Dataset& dataset,
              const Options& options,
              std::size_t rank,
              std::size_t world_size)
      : dataset_(dataset),
        sampler_(
            dataset.train.labels, options.sharding, rank, world_size, options.batch, options.seed) {
  }

  std::size_t steps_per_epoch() const override { return sampler_.steps_per_epoch(); }
  Batch batch_of(std::uint64_t step) override {
    return make_batch(dataset_.train, sampler_.batch_of(step));
  }
  std::size_t test_count() const override { return dataset_.test.count(); }
  Batch test_batch(std::span<const std::uint32_t> numbers) override {
    return make_batch(dataset_.test, numbers);
  }
  std::size_t classes() const override { return kClasses; }

 private:
  static Batch make_batch(const Pictures& source, std::span<const std::uint32_t> indices) {
    const auto count = static_cast<std::int64_t>(indices.size());
    Batch batch{torch::empty({count, 1, std::int64_t{kSide}, std::int64_t{kSide}}),
                torch::empty({count}, torch::kLong)};
    auto* pixel = batch.inputs.data_ptr<float>();
    auto* label = batch.answers.data_ptr<std::int64_t>();
    for (const auto index : indices) {
      const std::uint8_t* const from = source.pixels.data() + index * kPixels;
      pixel = std::transform(
          from, from + kPixels, pixel, [](std::uint8_t grey) { return float(grey) / 255 - 0.5F; });
      *label++ = source.labels[index];
    }
    return batch;
  }

  const Dataset& dataset_;
  Sampler sampler_;
};

/// Windows have a character more than the net sees: the answer to the last.
constexpr std::size_t kWindow = kContext + 1;

class TextTask final : public Task {
 public:
  TextTask(const Text& text, const Options& options, std::size_t rank, std::size_t world_size)
      : text_(text),
        batch_(options.batch),
        seed_(options.seed),
        rank_(rank),
        steps_per_epoch_(text.train().size() / (options.batch * world_size * kContext)) {}

  std::size_t steps_per_epoch() const override { return steps_per_epoch_; }
  Batch batch_of(std::uint64_t step) override {
    std::vector<std::size_t> starts(batch_);
    for (std::size_t i = 0; i < batch_; ++i) {
      starts[i] = window_start(seed_, step, rank_, i, text_.train().size(), kWindow);
    }
    return make_batch(text_.train(), starts);
  }
  std::size_t test_count() const override { return text_.test().size() / kWindow; }
  /// Evenly over all that judges, so that a few are a fair sample.
  Batch test_batch(std::span<const std::uint32_t> numbers) override {
    std::vector<std::size_t> starts;
    for (const std::uint32_t number : numbers) {
      starts.push_back(window_start(0, number, 0, 0, text_.test().size(), kWindow));
    }
    return make_batch(text_.test(), starts);
  }
  std::size_t classes() const override { return text_.alphabet; }

 private:
  static Batch make_batch(std::span<const std::uint8_t> from,
                          const std::vector<std::size_t>& starts) {
    const auto count = static_cast<std::int64_t>(starts.size());
    const auto shape = {count, std::int64_t{kContext}};
    Batch batch{torch::empty(shape, torch::kLong), torch::empty(shape, torch::kLong)};
    auto* input = batch.inputs.data_ptr<std::int64_t>();
    auto* answer = batch.answers.data_ptr<std::int64_t>();
    for (const std::size_t start : starts) {
      input = std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(start), kContext, input);
      answer = std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(start) + 1, kContext, answer);
    }
    return batch;
  }

  const Text& text_;
  std::size_t batch_;
  std::uint64_t seed_;
  std::size_t rank_;
  std::size_t steps_per_epoch_;
};

}  // namespace

std::unique_ptr<Task> make_picture_task(const Dataset& dataset,
                                        const Options& options,
                                        std::size_t rank,
                                        std::size_t world_size) {
  return std::make_unique<PictureTask>(dataset, options, rank, world_size);
}

std::unique_ptr<Task> make_text_task(const Text& text,
                                     const Options& options,
                                     std::size_t rank,
                                     std::size_t world_size) {
  return std::make_unique<TextTask>(text, options, rank, world_size);
}

}  // namespace fashion_mnist

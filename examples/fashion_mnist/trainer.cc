// SPDX-License-Identifier: Apache-2.0
#include "trainer.hpp"

#include "models.hpp"

#include "stretto/libtorch.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

namespace fashion_mnist {

namespace nn = torch::nn;
namespace slt = stretto::libtorch;

struct Trainer::Parts {
  std::shared_ptr<Net> net;
  std::optional<torch::optim::SGD> optimizer;
  std::optional<slt::DistributedDataParallel> ddp;
};

namespace {

using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr std::size_t kTestBatch = 250;

struct Batch {
  torch::Tensor pictures;  // [n, 1, 28, 28], from -0.5 to 0.5
  torch::Tensor labels;    // [n]
};

Batch make_batch(const Pictures& source, std::span<const std::uint32_t> indices) {
  const auto count = static_cast<std::int64_t>(indices.size());
  Batch batch{torch::empty({count, 1, std::int64_t{kSide}, std::int64_t{kSide}}),
              torch::empty({count}, torch::kLong)};
  auto* pixel = batch.pictures.data_ptr<float>();
  auto* label = batch.labels.data_ptr<std::int64_t>();
  for (const auto index : indices) {
    const std::uint8_t* const from = source.pixels.data() + index * kPixels;
    pixel = std::transform(
        from, from + kPixels, pixel, [](std::uint8_t grey) { return float(grey) / 255 - 0.5F; });
    *label++ = source.labels[index];
  }
  return batch;
}

[[noreturn]] void refuse(const std::string& text) {
  throw slt::Error(stretto::Status(stretto::StatusCode::kInvalidArgument, text));
}

/// What must be the same for a resumed run to go on as if it had not stopped.
std::map<std::string, std::string> texts_of(const Options& options) {
  return {{"model", options.model},
          {"batch", std::to_string(options.batch)},
          {"seed", std::to_string(options.seed)},
          {"by_class", options.sharding == Sharding::kByClass ? "yes" : "no"}};
}

/// In the first gradient that comes, flips a bit of the largest number: that one surely counts.
void flip_a_bit_once(torch::Tensor parameter) {
  // libtorch calls the hook as a constant.
  parameter.register_hook([flipped = std::make_shared<bool>(false)](const torch::Tensor& gradient) {
    if (std::exchange(*flipped, true)) {
      return gradient;
    }
    auto changed = gradient.clone().contiguous();
    float& largest = changed.data_ptr<float>()[changed.abs().argmax().item<std::int64_t>()];
    largest = std::bit_cast<float>(std::bit_cast<std::uint32_t>(largest) ^ (1U << 20U));
    return changed;
  });
}

}  // namespace

Trainer::Trainer(const Options& options,
                 const Dataset& dataset,
                 std::shared_ptr<stretto::Group> group,
                 std::size_t rank,
                 std::size_t world_size,
                 const stretto::EngineOptions& engine)
    : options_(options),
      dataset_(dataset),
      group_(std::move(group)),
      rank_(rank),
      world_size_(world_size),
      sampler_(
          dataset.train.labels, options.sharding, rank, world_size, options.batch, options.seed),
      parts_(std::make_unique<Parts>()) {
  if (sampler_.steps_per_epoch() == 0) {
    refuse("there are fewer pictures than --batch asks for in one step");
  }
  torch::manual_seed(options.seed);
  parts_->net = make_model(options.model);
  parts_->optimizer.emplace(
      parts_->net->parameters(),
      torch::optim::SGDOptions(options.learning_rate).momentum(options.momentum));
  if (options.resume) {
    load(options.checkpoint);
  }
  if (options.flip_bit && rank == world_size - 1) {
    flip_a_bit_once(parts_->net->parameters().front());
  }
  if (group_ != nullptr) {
    parts_->ddp.emplace(group_,
                        *parts_->net,
                        slt::DistributedDataParallelOptions{
                            .engine = engine, .environment = slt::Environment::kIgnore});
  }
}

Trainer::~Trainer() = default;

std::size_t Trainer::total_steps() const {
  return options_.steps > 0 ? options_.warmup + options_.steps
                            : options_.epochs * sampler_.steps_per_epoch();
}

StepFigures Trainer::step() {
  const Batch batch = make_batch(dataset_.train, sampler_.batch_of(done_));
  const auto begin = std::chrono::steady_clock::now();
  StepFigures figures;
  parts_->net->zero_grad(/*set_to_none=*/true);  // so that autograd's own memory is taken as it is
  const auto loss =
      nn::functional::cross_entropy(parts_->net->forward(batch.pictures), batch.labels);
  loss.backward();
  if (parts_->ddp) {
    const auto report = parts_->ddp->finish_step();
    figures.exposed_ms = report.exposed_ms;
    figures.hidden_ms = report.hidden_ms;
    figures.payload_bytes = report.payload_bytes;
  }
  parts_->optimizer->step();
  figures.step_ms = Milliseconds(std::chrono::steady_clock::now() - begin).count();
  figures.loss = loss.item<double>();
  ++done_;
  return figures;
}

double Trainer::test(std::size_t pictures) {
  const at::NoGradGuard no_grad;
  parts_->net->eval();
  const std::size_t count = std::min(pictures, dataset_.test.count());
  // Without a group every rank has another net, and each judges its own.
  const std::size_t stride = group_ != nullptr ? world_size_ : 1;
  std::vector<std::uint32_t> mine;
  for (std::size_t i = group_ != nullptr ? rank_ : 0; i < count; i += stride) {
    mine.push_back(static_cast<std::uint32_t>(i));
  }
  std::uint64_t right = 0;
  for (std::size_t at = 0; at < mine.size(); at += kTestBatch) {
    const auto batch = make_batch(
        dataset_.test, std::span(mine).subspan(at, std::min(kTestBatch, mine.size() - at)));
    const auto guess = parts_->net->forward(batch.pictures).argmax(1);
    right += static_cast<std::uint64_t>(guess.eq(batch.labels).sum().item<std::int64_t>());
  }
  parts_->net->train();
  if (group_ != nullptr) {
    const auto all =
        group_->control().all_gather("right answers",
                                     std::as_bytes(std::span(&right, 1)),
                                     stretto::Deadline::after(std::chrono::minutes(5)));
    if (!all) {
      throw slt::Error(all.error());
    }
    right = 0;
    for (const auto& bytes : *all) {
      std::uint64_t part = 0;
      std::memcpy(&part, bytes.data(), std::min(bytes.size(), sizeof(part)));
      right += part;
    }
  }
  return count == 0 ? 0 : double(right) / double(count);
}

std::uint64_t Trainer::weight_hash() const {
  return slt::weight_hash(*parts_->net);
}

std::size_t Trainer::parameter_elements() const {
  std::size_t elements = 0;
  for (const auto& parameter : parts_->net->parameters()) {
    elements += static_cast<std::size_t>(parameter.numel());
  }
  return elements;
}

std::string Trainer::schedule() const {
  return parts_->ddp ? std::string(to_string(parts_->ddp->engine().options().schedule)) : "alone";
}

void Trainer::save(const std::string& path) const {
  slt::save_checkpoint(path,
                       *parts_->net,
                       &*parts_->optimizer,
                       {.step = done_, .world_size = world_size_, .texts = texts_of(options_)});
}

void Trainer::load(const std::string& path) {
  const auto info = slt::load_checkpoint(path, *parts_->net, &*parts_->optimizer);
  for (const auto& [key, text] : texts_of(options_)) {
    const auto found = info.texts.find(key);
    if (found == info.texts.end() || found->second != text) {
      refuse("'" + path + "' is of a run with another --" + key + " (" +
             (found == info.texts.end() ? "unknown" : found->second) + ", not " + text + ")");
    }
  }
  if (info.world_size != world_size_) {
    refuse("'" + path + "' is of a run with " + std::to_string(info.world_size) +
           " ranks: its order of pictures cannot go on with " + std::to_string(world_size_));
  }
  done_ = info.step;
}

void Trainer::shutdown() {
  if (parts_->ddp) {
    parts_->ddp->shutdown();
  }
}

}  // namespace fashion_mnist

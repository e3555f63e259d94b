// SPDX-License-Identifier: Apache-2.0
#include "trainer.hpp"

#include "models.hpp"
#include "task.hpp"

#include "stretto/libtorch.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <numbers>
#include <optional>
#include <span>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

namespace fashion_mnist {

namespace nn = torch::nn;
namespace slt = stretto::libtorch;

struct Trainer::Parts {
  std::shared_ptr<Net> net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::optional<slt::DistributedDataParallel> ddp;
};

namespace {

using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr std::size_t kTestBatch = 250;

[[noreturn]] void refuse(const std::string& text) {
  throw slt::Error(stretto::Status(stretto::StatusCode::kInvalidArgument, text));
}

/// The prefix of the files that belong to a checkpoint.
std::string residuals_of(const std::string& path, std::uint64_t step) {
  return path + ".step-" + std::to_string(step);
}

/// What must be the same for a resumed run to go on as if it had not stopped.
std::map<std::string, std::string> texts_of(const Options& options) {
  return {{"model", options.model},
          {"batch", std::to_string(options.batch)},
          {"seed", std::to_string(options.seed)},
          {"optimizer", options.optimizer},
          {"by_class", options.sharding == Sharding::kByClass ? "yes" : "no"}};
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Options& options, const Net& net) {
  if (options.optimizer == "adam") {
    return std::make_unique<torch::optim::Adam>(net.parameters(),
                                                torch::optim::AdamOptions(options.learning_rate));
  }
  return std::make_unique<torch::optim::SGD>(
      net.parameters(), torch::optim::SGDOptions(options.learning_rate).momentum(options.momentum));
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

/// Of each answer on its own, though a text has many a window.
torch::Tensor loss_of(const torch::Tensor& scores, const torch::Tensor& answers) {
  return nn::functional::cross_entropy(scores.reshape({-1, scores.size(-1)}),
                                       answers.reshape({-1}));
}

/// What a rank has counted in a test.
struct Tally {
  double answers = 0;
  double right = 0;
  double loss = 0;

  void add(const torch::Tensor& scores, const torch::Tensor& wanted) {
    const auto count = static_cast<double>(wanted.numel());
    answers += count;
    right += static_cast<double>(scores.argmax(-1).eq(wanted).sum().item<std::int64_t>());
    loss += count * loss_of(scores, wanted).item<double>();
  }
};

/// The same on all ranks: added in their order.
Tally sum_over_ranks(stretto::Group& group, const Tally& own) {
  const auto all = group.control().all_gather(
      "test", std::as_bytes(std::span(&own, 1)), stretto::Deadline::after(std::chrono::minutes(5)));
  if (!all) {
    throw slt::Error(all.error());
  }
  Tally sum;
  for (const auto& bytes : *all) {
    Tally part;
    std::memcpy(&part, bytes.data(), std::min(bytes.size(), sizeof(part)));
    sum.answers += part.answers;
    sum.right += part.right;
    sum.loss += part.loss;
  }
  return sum;
}

}  // namespace

Trainer::Trainer(const Options& options,
                 std::unique_ptr<Task> task,
                 std::shared_ptr<stretto::Group> group,
                 std::size_t rank,
                 std::size_t world_size,
                 const stretto::EngineOptions& engine)
    : options_(options),
      task_(std::move(task)),
      group_(std::move(group)),
      rank_(rank),
      world_size_(world_size),
      parts_(std::make_unique<Parts>()) {
  if (task_->steps_per_epoch() == 0) {
    refuse("there is less data than --batch asks for in one step");
  }
  torch::manual_seed(options.seed);
  parts_->net = make_model(options.model, task_->classes());
  parts_->optimizer = make_optimizer(options, *parts_->net);
  if (options.resume) {
    load(options.checkpoint);
  }
  if (options.flip_bit && rank == world_size - 1) {
    flip_a_bit_once(parts_->net->parameters().front());
  }
  if (group_ != nullptr) {
    parts_->ddp.emplace(
        group_,
        *parts_->net,
        slt::DistributedDataParallelOptions{.engine = engine,
                                            .environment = slt::Environment::kIgnore,
                                            .optimizer = parts_->optimizer.get()});
    if (options.resume) {
      parts_->ddp->load_residuals(residuals_of(options.checkpoint, done_), done_, world_size_);
      saved_.push_back(done_);
    }
  }
}

Trainer::~Trainer() = default;

std::size_t Trainer::total_steps() const {
  return options_.steps > 0 ? options_.warmup + options_.steps
                            : options_.epochs * task_->steps_per_epoch();
}

std::size_t Trainer::steps_per_epoch() const {
  return task_->steps_per_epoch();
}

/// Straight up to --lr in a tenth of all steps, then towards 0 as half a cosine.
void Trainer::set_learning_rate() {
  constexpr double kRise = 0.1;
  const double done = static_cast<double>(done_) / static_cast<double>(total_steps());
  const double fall = std::max(0.0, (done - kRise) / (1 - kRise));
  const double share = done < kRise ? done / kRise : 0.5 * (1 + std::cos(std::numbers::pi * fall));
  const double rate = options_.learning_rate * share;
  for (auto& group : parts_->optimizer->param_groups()) {
    group.options().set_lr(rate);
  }
}

StepFigures Trainer::step() {
  const Batch batch = task_->batch_of(done_);
  const auto begin = std::chrono::steady_clock::now();
  StepFigures figures;
  parts_->net->zero_grad(/*set_to_none=*/true);  // so that autograd's own memory is taken as it is
  const auto loss = loss_of(parts_->net->forward(batch.inputs), batch.answers);
  loss.backward();
  if (parts_->ddp) {
    const auto report = parts_->ddp->finish_step();
    figures.exposed_ms = report.exposed_ms;
    figures.hidden_ms = report.hidden_ms;
    figures.payload_bytes = report.payload_bytes;
  }
  if (options_.decay) {
    set_learning_rate();
  }
  parts_->optimizer->step();
  figures.step_ms = Milliseconds(std::chrono::steady_clock::now() - begin).count();
  figures.loss = loss.item<double>();
  ++done_;
  return figures;
}

Judgement Trainer::test(std::size_t count) {
  const at::NoGradGuard no_grad;
  parts_->net->eval();
  count = std::min(count, task_->test_count());
  // Without a group every rank has another net, and each judges its own.
  const std::size_t stride = group_ != nullptr ? world_size_ : 1;
  std::vector<std::uint32_t> mine;
  for (std::size_t i = group_ != nullptr ? rank_ : 0; i < count; i += stride) {
    mine.push_back(static_cast<std::uint32_t>(i));
  }
  Tally tally;
  for (std::size_t at = 0; at < mine.size(); at += kTestBatch) {
    const auto batch =
        task_->test_batch(std::span(mine).subspan(at, std::min(kTestBatch, mine.size() - at)));
    tally.add(parts_->net->forward(batch.inputs), batch.answers);
  }
  parts_->net->train();
  if (group_ != nullptr) {
    tally = sum_over_ranks(*group_, tally);
  }
  const double answers = std::max(tally.answers, 1.0);
  return {tally.right / answers, tally.loss / answers};
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

/// What codecs keep, each rank its own.  The files of the save before stay: should this process be
/// killed now, the checkpoint is still the one that they belong to.
void Trainer::save_residuals(const std::string& path) {
  parts_->ddp->save_residuals(residuals_of(path, done_), done_);
  saved_.push_back(done_);
  if (saved_.size() > 2) {
    const std::string old = residuals_of(path, saved_.front());
    std::remove(
        (old + ".rank-" + std::to_string(rank_) + "-of-" + std::to_string(world_size_)).c_str());
    saved_.erase(saved_.begin());
  }
}

void Trainer::save(const std::string& path) {
  if (parts_->ddp) {
    save_residuals(path);
  }
  if (rank_ != 0) {
    return;
  }
  slt::save_checkpoint(path,
                       *parts_->net,
                       parts_->optimizer.get(),
                       {.step = done_, .world_size = world_size_, .texts = texts_of(options_)});
}

void Trainer::load(const std::string& path) {
  const auto info = slt::load_checkpoint(path, *parts_->net, parts_->optimizer.get());
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

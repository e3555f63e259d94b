// SPDX-License-Identifier: Apache-2.0
// Saving, loading and going on to the last bit.
#include "checkpoint/test_folder.hpp"
#include "tests/torch/nets.hpp"
#include "tests/torch/ranks.hpp"

#include <csignal>

#include <sys/resource.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

namespace stretto::libtorch {
namespace {

using checkpoint::TestFolder;

enum class Method { kSgd, kAdam };

std::unique_ptr<torch::optim::Optimizer> make(Method method, const torch::nn::Module& module) {
  if (method == Method::kAdam) {
    return std::make_unique<torch::optim::Adam>(module.parameters(), 0.01);
  }
  return std::make_unique<torch::optim::SGD>(module.parameters(),
                                             torch::optim::SGDOptions(0.1).momentum(0.9));
}

void train(Net& net, torch::optim::Optimizer& optimizer, std::uint64_t from, std::uint64_t to) {
  for (auto step = from; step < to; ++step) {
    optimizer.zero_grad();
    loss_of(net.forward(batch(step))).backward();
    optimizer.step();
  }
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return std::string(error.status().message());
  }
  return "";
}

TEST(Checkpoint, ARunGoesOnToTheLastBit) {
  for (const auto method : {Method::kSgd, Method::kAdam}) {
    const TestFolder folder;
    Net through(1);
    auto through_optimizer = make(method, through);
    train(through, *through_optimizer, 0, 8);

    Net first(1);
    auto first_optimizer = make(method, first);
    train(first, *first_optimizer, 0, 3);
    first.counter.fill_(77);
    save_checkpoint(folder.path("f"),
                    first,
                    first_optimizer.get(),
                    {.step = 3, .world_size = 2, .texts = {{"who", "me"}}});

    Net second(2);
    auto second_optimizer = make(method, second);
    const auto info = load_checkpoint(folder.path("f"), second, second_optimizer.get());
    EXPECT_EQ(info.step, 3U);
    EXPECT_EQ(info.world_size, 2U);
    EXPECT_EQ(info.texts, (std::map<std::string, std::string>{{"who", "me"}}));
    EXPECT_EQ(weight_hash(second), weight_hash(first));
    EXPECT_TRUE(second.counter.equal(first.counter));
    train(second, *second_optimizer, 3, 8);
    EXPECT_EQ(weight_hash(second), weight_hash(through));

    // Without the optimizer's state it would not have been the same.
    Net third(2);
    auto third_optimizer = make(method, third);
    load_checkpoint(folder.path("f"), third, nullptr);
    train(third, *third_optimizer, 3, 8);
    EXPECT_NE(weight_hash(third), weight_hash(through));
  }
}

TEST(Checkpoint, TwoRanksGoOnToTheLastBit) {
  const TestFolder folder;
  std::uint64_t hashes[2][2] = {{1, 2}, {3, 4}};
  const auto run = [&](const GroupPointer& group, std::uint64_t from, std::uint64_t to) {
    Net net(1);
    auto optimizer = make(Method::kSgd, net);
    if (from > 0) {
      load_checkpoint(folder.path("f"), net, optimizer.get());
    }
    DistributedDataParallel ddp(group, net);
    for (auto step = from; step < to; ++step) {
      optimizer->zero_grad();
      loss_of(net.forward(batch(2 * step + rank_of(group)))).backward();
      ddp.finish_step();
      optimizer->step();
      if (step + 1 == 3 && rank_of(group) == 0) {
        save_checkpoint(
            folder.path("f"), net, optimizer.get(), {.step = 3, .world_size = 2, .texts = {}});
      }
    }
    hashes[from > 0 ? 1 : 0][rank_of(group)] = weight_hash(net);
    ddp.shutdown();
  };
  expect_ranks(2, [&](const GroupPointer& group) { run(group, 0, 6); });
  expect_ranks(2, [&](const GroupPointer& group) { run(group, 3, 6); });
  EXPECT_EQ(hashes[0][0], hashes[0][1]);
  EXPECT_EQ(hashes[1][0], hashes[0][0]);
  EXPECT_EQ(hashes[1][1], hashes[0][0]);
}

TEST(Checkpoint, AnotherModelIsRefusedByNameAndNothingChanges) {
  const TestFolder folder;
  Net net(1);
  save_checkpoint(folder.path("f"), net, nullptr, {});
  torch::nn::Linear layer(4, 5);
  const auto before = weight_hash(*layer);
  EXPECT_NE(error_of([&] {
              load_checkpoint(folder.path("f"), *layer, nullptr);
            }).find("has no tensor 'weight': the checkpoint is of another model"),
            std::string::npos);
  EXPECT_EQ(weight_hash(*layer), before);
  Net more(1);
  more.unregister_module("right");
  EXPECT_NE(error_of([&] {
              load_checkpoint(folder.path("f"), more, nullptr);
            }).find("holds more than this model has"),
            std::string::npos);
  auto optimizer = make(Method::kSgd, net);
  EXPECT_NE(error_of([&] {
              load_checkpoint(folder.path("f"), net, optimizer.get());
            }).find("holds no optimizer state"),
            std::string::npos);
}

TEST(Checkpoint, AFullDiskLeavesTheOldOne) {
  const TestFolder folder;
  Net net(1);
  save_checkpoint(folder.path("f"), net, nullptr, {.step = 1, .world_size = 1, .texts = {}});
  auto* const previous_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit previous{};
  getrlimit(RLIMIT_FSIZE, &previous);
  const rlimit limit{100, previous.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  const auto error = error_of([&] {
    save_checkpoint(folder.path("f"), net, nullptr, {.step = 2, .world_size = 1, .texts = {}});
  });
  setrlimit(RLIMIT_FSIZE, &previous);
  std::signal(SIGXFSZ, previous_handler);
  EXPECT_NE(error.find("cannot write '" + folder.path("f") + "'"), std::string::npos) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos);
  EXPECT_EQ(load_checkpoint(folder.path("f"), net, nullptr).step, 1U);
  EXPECT_EQ(folder.file_count(), 1U);
}

}  // namespace
}  // namespace stretto::libtorch

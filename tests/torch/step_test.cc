// SPDX-License-Identifier: Apache-2.0
// What a step does to gradients and weights, with ranks that are threads.
#include "tests/torch/nets.hpp"
#include "tests/torch/ranks.hpp"

#include <chrono>
#include <thread>

#include <torch/optim/sgd.h>

namespace stretto::libtorch {
namespace {

enum class Zeroing { kToZeros, kToNone };

torch::optim::SGD make_optimizer(const torch::nn::Module& module) {
  return torch::optim::SGD(module.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

DistributedDataParallelOptions with(Schedule schedule) {
  DistributedDataParallelOptions options;
  options.engine.schedule = schedule;
  options.engine.timeout = std::chrono::seconds(20);
  return options;
}

/// What two ranks that average exactly must end with, computed without any exchange.
std::uint64_t expected_hash(int steps) {
  Net net(1);
  auto optimizer = make_optimizer(net);
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<torch::Tensor>> gradients(2);
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
      net.zero_grad();
      loss_of(net.forward(batch(std::uint64_t(2 * step) + rank))).backward();
      for (auto& parameter : net.parameters()) {
        gradients[rank].push_back(parameter.grad().defined() ? parameter.grad().clone()
                                                             : torch::Tensor());
      }
    }
    auto parameters = net.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (gradients[0][i].defined()) {
        parameters[i].mutable_grad() = (gradients[0][i] + gradients[1][i]) * 0.5F;
      }
    }
    optimizer.step();
  }
  return weight_hash(net);
}

std::uint64_t trained_hash(const GroupPointer& group,
                           int steps,
                           Zeroing zeroing,
                           const DistributedDataParallelOptions& options) {
  Net net(1 + rank_of(group));  // the start values of rank 0 win
  auto optimizer = make_optimizer(net);
  DistributedDataParallel ddp(group, net, options);
  for (int step = 0; step < steps; ++step) {
    net.zero_grad(zeroing == Zeroing::kToNone);
    loss_of(net.forward(batch(std::uint64_t(2 * step) + rank_of(group)))).backward();
    ddp.finish_step();
    optimizer.step();
  }
  ddp.check_replicas();
  ddp.shutdown();
  return weight_hash(net);
}

TEST(Step, GivesTheBitsOfTheMeanUnderEveryScheduleAndZeroing) {
  const auto expected = expected_hash(5);
  EXPECT_NE(expected, expected_hash(4));
  for (const auto schedule : {Schedule::kBackward, Schedule::kSequential}) {
    for (const auto zeroing : {Zeroing::kToZeros, Zeroing::kToNone}) {
      expect_ranks(2, [&](const GroupPointer& group) {
        EXPECT_EQ(trained_hash(group, 5, zeroing, with(schedule)), expected);
      });
    }
  }
}

TEST(Step, StartsFromRankZero) {
  for (const auto rule : {Buffers::kBroadcast, Buffers::kAverage, Buffers::kLocal}) {
    expect_ranks(3, [rule](const GroupPointer& group) {
      Net net(1 + rank_of(group));
      {
        torch::NoGradGuard no_grad;
        net.running.fill_(3.0 + static_cast<double>(rank_of(group)));
      }
      DistributedDataParallelOptions options;
      options.buffers = rule;
      DistributedDataParallel ddp(group, net, options);
      const Net expected(1);
      EXPECT_EQ(weight_hash(net), weight_hash(expected));
      EXPECT_TRUE(net.frozen.equal(expected.frozen));
      EXPECT_TRUE(net.counter.equal(expected.counter));
      EXPECT_TRUE(net.running.eq(3.0).all().item<bool>()) << net.running;
      ddp.shutdown();
    });
  }
}

// Held until the end of the step, each gradient would cost fresh memory.
TEST(Step, AGradientThatHasLeftGivesItsMemoryBackBeforeTheStepEnds) {
  expect_ranks(2, [](const GroupPointer& group) {
    constexpr int kLayers = 200;
    torch::nn::Sequential net;
    for (int layer = 0; layer < kLayers; ++layer) {
      net->push_back(torch::nn::Linear(8, 8));
    }
    DistributedDataParallel ddp(group, *net);
    const auto input = torch::ones({4, 8});
    const auto first = net->parameters().front();
    int used = 0;
    // Each gradient looks after those before it; the first has been copied at the latest when the
    // progress thread has had a turn.
    do {
      net->ptr<torch::nn::LinearImpl>(std::size_t(used++))->forward(input).sum().backward();
      std::this_thread::sleep_for(std::chrono::milliseconds(used > 1 ? 10 : 0));
    } while (first.grad().defined() && used < kLayers);
    EXPECT_FALSE(first.grad().defined());
    ddp.finish_step();
    EXPECT_TRUE(first.grad().eq(4.0).all().item<bool>()) << first.grad();
    ddp.shutdown();
  });
}

TEST(Step, AccumulatesOverPassesAlsoWhatOnlyAnEarlierOneUsed) {
  expect_ranks(2, [](const GroupPointer& group) {
    Net net(1);
    DistributedDataParallel ddp(group, net);
    ddp.begin_step({.samples = 16, .backward_passes = 2});
    loss_of(net.forward_right(batch(rank_of(group)))).backward();
    loss_of(net.forward(batch(2 + rank_of(group)))).backward();
    ddp.finish_step();
    ddp.shutdown();

    std::vector<torch::Tensor> sums[2];
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
      Net alone(1);
      loss_of(alone.forward_right(batch(rank))).backward();
      loss_of(alone.forward(batch(2 + rank))).backward();
      for (const auto& item : alone.named_parameters()) {
        sums[rank].push_back(item.value().grad());
      }
    }
    const auto named = net.named_parameters();
    for (std::size_t i = 0; i < named.size(); ++i) {
      if (sums[0][i].defined()) {
        EXPECT_TRUE(named[i].value().grad().allclose((sums[0][i] + sums[1][i]) / 2))
            << named[i].key();
      }
    }
  });
}

TEST(Step, WeighsRanksBySamples) {
  expect_ranks(2, [](const GroupPointer& group) {
    auto layer = torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false));
    DistributedDataParallel ddp(group, *layer);
    ddp.begin_step({.samples = rank_of(group) == 0 ? 1U : 3U});
    const auto value = rank_of(group) == 0 ? 4.0F : 8.0F;
    layer->forward(torch::full({1, 1}, value)).sum().backward();
    const auto report = ddp.finish_step();
    EXPECT_EQ(report.samples, 4U);
    EXPECT_EQ(layer->weight.grad().item<float>(), 7.0F);
    ddp.shutdown();
  });
}

TEST(Step, UnusedParametersCountAsZerosUnlessNobodyUsedThem) {
  expect_ranks(2, [](const GroupPointer& group) {
    Net net(1);
    DistributedDataParallel ddp(group, net);
    auto output = rank_of(group) == 0 ? net.forward(batch(0)) : net.last(torch::ones({8, 5}));
    loss_of(output).backward();
    ddp.finish_step();
    ASSERT_TRUE(net.left->weight.grad().defined());
    Net alone(1);
    loss_of(alone.forward(batch(0))).backward();
    EXPECT_TRUE(net.left->weight.grad().equal(alone.left->weight.grad() * 0.5F));
    EXPECT_FALSE(net.right->weight.grad().defined());
    EXPECT_FALSE(net.frozen.grad().defined());
    ddp.shutdown();
  });
}

TEST(Step, RanksWithFewerBatchesFollow) {
  std::uint64_t hashes[2] = {1, 2};
  expect_ranks(2, [&](const GroupPointer& group) {
    Net net(1);
    auto optimizer = make_optimizer(net);
    DistributedDataParallelOptions options;
    options.buffers = Buffers::kAverage;
    DistributedDataParallel ddp(group, net, options);
    const int steps = rank_of(group) == 0 ? 2 : 5;
    for (int step = 0; step < steps; ++step) {
      {
        torch::NoGradGuard no_grad;
        net.running.fill_(8.0);
      }
      optimizer.zero_grad();
      loss_of(net.forward(batch(std::uint64_t(step)))).backward();
      ddp.finish_step();
      optimizer.step();
    }
    ddp.follow_until_all_ended(optimizer);
    hashes[rank_of(group)] = weight_hash(net);
    // A rank that saw no data has no say in the mean of the buffers.
    EXPECT_TRUE(net.running.eq(8.0).all().item<bool>()) << net.running;
    ddp.shutdown();
  });
  // Both ranks had the same batches, so the mean over one or two of them is the same.
  Net alone(1);
  auto optimizer = make_optimizer(alone);
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    loss_of(alone.forward(batch(std::uint64_t(step)))).backward();
    optimizer.step();
  }
  EXPECT_EQ(hashes[0], weight_hash(alone));
  EXPECT_EQ(hashes[1], weight_hash(alone));
}

TEST(Step, BuffersFollowTheirRule) {
  for (const auto rule : {Buffers::kBroadcast, Buffers::kAverage, Buffers::kLocal}) {
    expect_ranks(2, [rule](const GroupPointer& group) {
      Net net(1);
      DistributedDataParallelOptions options;
      options.buffers = rule;
      DistributedDataParallel ddp(group, net, options);
      for (int step = 0; step < 2; ++step) {
        {
          torch::NoGradGuard no_grad;
          net.running.fill_(rank_of(group) == 0 ? 10.0 : 20.0);
        }
        loss_of(net.forward(batch(0))).backward();
        ddp.finish_step();
        const double own = rank_of(group) == 0 ? 10 : 20;
        const double expected = rule == Buffers::kBroadcast ? 10
                                : rule == Buffers::kAverage ? 15
                                                            : own;
        EXPECT_TRUE(net.running.eq(expected).all().item<bool>()) << net.running;
      }
      ddp.shutdown();
    });
  }
}

TEST(Step, AWeightThatIsUsedTwiceTravelsOnceWhenItIsComplete) {
  expect_ranks(2, [](const GroupPointer& group) {
    auto layer = torch::nn::Linear(4, 4);
    torch::nn::Sequential net(layer, layer);  // one module under two names
    DistributedDataParallel ddp(group, *net);
    EXPECT_EQ(ddp.engine().parameter_count(), 2U);
    loss_of(net->forward(batch(rank_of(group)))).backward();
    ddp.finish_step();
    std::vector<torch::Tensor> sums(2);
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
      auto copy = torch::nn::Linear(4, 4);
      {
        torch::NoGradGuard no_grad;
        copy->weight.copy_(layer->weight);
        copy->bias.copy_(layer->bias);
      }
      loss_of(copy(copy(batch(rank)))).backward();
      sums[rank] = copy->weight.grad();
    }
    EXPECT_TRUE(layer->weight.grad().equal((sums[0] + sums[1]) * 0.5F));
    ddp.shutdown();
  });
}

TEST(Step, TwoLossesAndTwoModelsInOneProcess) {
  expect_ranks(2, [](const GroupPointer& group) {
    Net one(1);
    Net two(2);
    DistributedDataParallel ddp_one(group, one);
    DistributedDataParallel ddp_two(group, two);
    for (int step = 0; step < 3; ++step) {
      one.zero_grad();
      two.zero_grad();
      const auto hidden = one.forward(batch(rank_of(group)));
      // One graph through both models, and two losses of which the first keeps it.
      ddp_one.begin_step({.backward_passes = 2});
      const auto loss = loss_of(hidden);
      const auto other = loss_of(two.forward(torch::cat({hidden, hidden.narrow(1, 0, 1)}, 1)));
      loss.backward({}, /*keep_graph=*/true);
      other.backward();
      ddp_two.finish_step();
      ddp_one.finish_step();
    }
    ddp_one.check_replicas();
    ddp_two.check_replicas();
    ddp_one.shutdown();
    ddp_two.shutdown();
  });
}

TEST(Step, ATransposedWeightIsExchangedAsWell) {
  expect_ranks(2, [](const GroupPointer& group) {
    auto layer = torch::nn::Linear(torch::nn::LinearOptions(4, 3).bias(false));
    {
      torch::NoGradGuard no_grad;
      const auto start = torch::arange(12, torch::kFloat).view({4, 3}).t() *
                         static_cast<float>(1 + rank_of(group));
      layer->weight.set_data(start);
    }
    ASSERT_FALSE(layer->weight.is_contiguous());
    DistributedDataParallel ddp(group, *layer);
    EXPECT_EQ(layer->weight[1][0].item<float>(), 1.0F);
    layer->forward(torch::arange(4, torch::kFloat).view({1, 4})).sum().backward();
    ddp.finish_step();
    for (int row = 0; row < 3; ++row) {
      EXPECT_TRUE(layer->weight.grad()[row].equal(torch::arange(4, torch::kFloat)));
    }
    ddp.check_replicas();
    ddp.shutdown();
  });
}

}  // namespace
}  // namespace stretto::libtorch

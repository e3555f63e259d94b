// SPDX-License-Identifier: Apache-2.0
// What is refused, by name, and who may be destroyed first.
#include "tests/torch/nets.hpp"
#include "tests/torch/ranks.hpp"

#include <optional>

#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>

namespace stretto::libtorch {
namespace {

GroupPointer alone() {
  return Group::in_process(1).front();
}

/// What `body` throws; "" if it does not.
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

void backward(Net& net) {
  loss_of(net.forward(batch(0))).backward();
}

TEST(Refused, ATypeThatIsNotExchanged) {
  auto layer = torch::nn::Linear(2, 2);
  layer->to(torch::kFloat64);
  EXPECT_EQ(error_of([&] { DistributedDataParallel ddp(alone(), *layer); }),
            "invalid argument: parameter 'weight' has the type Double; float32, float16 and "
            "bfloat16 can be exchanged: convert it, or freeze it with requires_grad_(false)");
}

TEST(Refused, ASparseGradient) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  DistributedDataParallel ddp(alone(), *table);
  EXPECT_EQ(error_of([&] {
              table->forward(torch::tensor({1, 3})).sum().backward();
            }),
            "invalid argument: parameter 'weight' has a sparse gradient, which is not exchanged: "
            "use a dense one (for an embedding, sparse(false))");
}

TEST(Refused, AGradientAfterItWasSent) {
  Net net(1);
  DistributedDataParallel ddp(alone(), net);
  backward(net);
  const auto error = error_of([&] { backward(net); });
  EXPECT_NE(error.find("parameter 'last."), std::string::npos) << error;
  EXPECT_NE(error.find("got a gradient 2 times in step"), std::string::npos) << error;
  EXPECT_NE(error.find("begin_step({.backward_passes = ...})"), std::string::npos) << error;
}

TEST(Refused, BeginStepAfterBackwardAndNoPassAtAll) {
  Net net(1);
  DistributedDataParallel ddp(alone(), net);
  backward(net);
  EXPECT_NE(error_of([&] { ddp.begin_step({}); }).find("has begun already"), std::string::npos);
  DistributedDataParallel other(alone(), net);
  EXPECT_NE(error_of([&] { other.begin_step({.backward_passes = 0}); }).find("at least 1"),
            std::string::npos);
}

TEST(Refused, AReplacedTensor) {
  Net net(1);
  DistributedDataParallel ddp(alone(), net);
  net.unregister_module("left");
  net.left = net.register_module("left", torch::nn::Linear(4, 5));
  backward(net);
  EXPECT_EQ(error_of([&] { ddp.finish_step(); }),
            "invalid argument: the tensor of parameter 'left.weight' was replaced after attaching: "
            "make a new DistributedDataParallel after changing a module");
}

TEST(Refused, ADifferentTypeInTheSameTensor) {
  Net net(1);
  DistributedDataParallel ddp(alone(), net);
  net.left->weight.set_data(torch::zeros({4, 4}));
  EXPECT_NE(error_of([&] {
              ddp.finish_step();
            }).find("parameter 'left.weight' was given another shape or type"),
            std::string::npos);
}

TEST(Refused, AddedRemovedAndUnfrozenParameters) {
  {
    Net net(1);
    DistributedDataParallel ddp(alone(), net);
    net.register_parameter("more", torch::zeros({1}));
    EXPECT_NE(error_of([&] { ddp.finish_step(); }).find("parameter 'more' was added"),
              std::string::npos);
  }
  {
    Net net(1);
    DistributedDataParallel ddp(alone(), net);
    net.unregister_module("right");
    EXPECT_NE(error_of([&] { ddp.finish_step(); }).find("parameter 'right.weight' was removed"),
              std::string::npos);
  }
  {
    Net net(1);
    DistributedDataParallel ddp(alone(), net);
    net.frozen.requires_grad_(true);
    EXPECT_NE(error_of([&] {
                ddp.finish_step();
              }).find("parameter 'frozen' was frozen when attached and is not now"),
              std::string::npos);
  }
}

TEST(Refused, AnotherModelOnAnotherRank) {
  const auto errors = run_ranks(2, [](const GroupPointer& group) {
    torch::nn::Linear layer(4, rank_of(group) == 0 ? 3 : 5);
    DistributedDataParallel ddp(group, *layer);
  });
  for (const auto& error : errors) {
    for (const auto* part : {"bias", "rank 0", "rank 1", "[3]", "[5]"}) {
      EXPECT_NE(error.find(part), std::string::npos) << part << " in: " << error;
    }
  }
}

TEST(Refused, ReplicasThatDifferAreNamed) {
  const auto errors = run_ranks(2, [](const GroupPointer& group) {
    Net net(1);
    DistributedDataParallelOptions options;
    options.engine.check_replicas_every = 2;
    DistributedDataParallel ddp(group, net, options);
    for (int step = 0; step < 4; ++step) {
      net.zero_grad();
      backward(net);
      ddp.finish_step();
      torch::NoGradGuard no_grad;
      net.right->bias.add_(rank_of(group) == 1 ? 1.0 : 0.0);
    }
  });
  for (const auto& error : errors) {
    EXPECT_NE(error.find("right.bias"), std::string::npos) << error;
  }
}

TEST(Refused, ALostRankIsNamedAndNobodyWaitsForLong) {
  const auto errors = run_ranks(2, [](const GroupPointer& group) {
    Net net(1);
    DistributedDataParallel ddp(group, net);
    if (rank_of(group) == 1) {
      net.unregister_module("right");  // this rank gives up
    }
    backward(net);
    ddp.finish_step();
  });
  EXPECT_NE(errors[1].find("'right.weight' was removed"), std::string::npos) << errors[1];
  EXPECT_NE(errors[0].find("rank 1"), std::string::npos) << errors[0];
}

TEST(Lifetime, TheModuleTrainsAloneAfterwards) {
  Net net(1);
  torch::optim::SGD optimizer(net.parameters(), 0.1);
  torch::Tensor kept;
  {
    DistributedDataParallel ddp(alone(), net);
    backward(net);
    ddp.finish_step();
    kept = net.last->bias.grad();
  }
  const auto value = kept.clone();
  EXPECT_TRUE(net.last->bias.grad().equal(value));
  optimizer.step();
  net.zero_grad();
  backward(net);
  backward(net);  // nobody counts any more
  optimizer.step();
  EXPECT_TRUE(kept.equal(value));
}

TEST(Lifetime, AGraphMayOutliveUs) {
  Net net(1);
  torch::Tensor loss;
  {
    DistributedDataParallel ddp(alone(), net);
    loss = loss_of(net.forward(batch(0)));
  }
  loss.backward();
  EXPECT_TRUE(net.last->bias.grad().defined());
}

TEST(Lifetime, AModuleOfASharedPointerIsKept) {
  std::optional<DistributedDataParallel> ddp;
  torch::Tensor loss;
  {
    auto net = std::make_shared<Net>(1);
    ddp.emplace(alone(), *net);
    loss = loss_of(net->forward(batch(0)));
  }
  loss.backward();
  EXPECT_EQ(ddp->finish_step().unused, 2U);
}

}  // namespace
}  // namespace stretto::libtorch

// SPDX-License-Identifier: Apache-2.0
// A stranger's training program: one rank without a launcher, so that linking and running are
// tried.
#include "stretto/libtorch.hpp"

#include <cstdio>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

int main() {
  torch::nn::Linear net(4, 1);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  stretto::libtorch::DistributedDataParallel ddp(stretto::libtorch::join(), *net);
  net->forward(torch::ones({2, 4})).sum().backward();
  ddp.finish_step();
  optimizer.step();
  ddp.shutdown();
  std::puts("one step");
  return 0;
}

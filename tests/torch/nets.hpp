// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

namespace stretto::libtorch {

/// Three layers, of which `left` or `right` may be used, a frozen one, and a buffer of each kind.
struct Net : torch::nn::Module {
  explicit Net(std::uint64_t seed) {
    left = register_module("left", torch::nn::Linear(4, 5));
    right = register_module("right", torch::nn::Linear(4, 5));
    last = register_module("last", torch::nn::Linear(5, 3));
    frozen = register_parameter("frozen", torch::zeros({7}), /*requires_grad=*/false);
    counter = register_buffer("counter", torch::zeros({2}, torch::kLong));
    running = register_buffer("running", torch::zeros({6}));
    torch::NoGradGuard no_grad;
    auto generator = at::detail::createCPUGenerator(seed);
    for (auto& parameter : parameters()) {
      parameter.copy_(torch::rand(parameter.sizes(), generator) - 0.5);
    }
    counter.fill_(static_cast<std::int64_t>(seed));
    running.fill_(static_cast<double>(seed));
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(left(x))); }
  torch::Tensor forward_right(const torch::Tensor& x) { return last(torch::tanh(right(x))); }

  torch::nn::Linear left{nullptr}, right{nullptr}, last{nullptr};
  torch::Tensor frozen, counter, running;
};

/// A batch that is a function of its number.
inline torch::Tensor batch(std::uint64_t number, std::int64_t rows = 8) {
  auto generator = at::detail::createCPUGenerator(1000 + number);
  return torch::rand({rows, 4}, generator);
}

inline torch::Tensor loss_of(const torch::Tensor& output) {
  return output.pow(2).mean();
}

}  // namespace stretto::libtorch

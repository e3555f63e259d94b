// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include <torch/nn/module.h>
#include <torch/types.h>

namespace fashion_mnist {

/// A net that maps pictures [n, 1, 28, 28] to scores [n, 10].
class Net : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(torch::Tensor pictures) = 0;
};

/// "cnn" (0.4 million parameters), "mlp" (5.8 million) or "resnet18" (11 million).  Null for
/// another name.
std::shared_ptr<Net> make_model(const std::string& name);

}  // namespace fashion_mnist

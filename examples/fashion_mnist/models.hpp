// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <torch/nn/module.h>
#include <torch/types.h>

namespace fashion_mnist {

/// Characters that a transformer sees at once, at most.
inline constexpr std::size_t kContext = 128;

/// A net that maps pictures [n, 1, 28, 28] to scores [n, classes], or characters [n, t] to scores
/// [n, t, classes] of the ones that follow.
class Net : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(torch::Tensor inputs) = 0;
};

/// "cnn" (0.4 million parameters), "mlp" (5.8 million) or "resnet18" (11 million) for pictures in
/// 10 classes; "transformer" (0.4 million) for characters.  Null for another name.
std::shared_ptr<Net> make_model(const std::string& name, std::size_t classes);

/// Two layers of width 128 with four heads.
std::shared_ptr<Net> make_transformer(std::size_t classes);

}  // namespace fashion_mnist

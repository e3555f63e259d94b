// SPDX-License-Identifier: Apache-2.0

// A transformer that guesses characters (Vaswani et al. 2017, the decoder alone; norms before the
// layers, as in GPT-2).
#include "models.hpp"

#include <cmath>
#include <limits>

#include <torch/nn/functional/activation.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

namespace fashion_mnist {
namespace {

namespace nn = torch::nn;

constexpr std::int64_t kWidth = 128;
constexpr std::int64_t kHeads = 4;
constexpr int kLayers = 2;
constexpr double kDeviation = 0.02;  // of the weights at the start

class Layer final : public nn::Module {
 public:
  Layer() {
    register_module("norm1", norm1_);
    register_module("attention", attention_);
    register_module("mix", mix_);
    register_module("norm2", norm2_);
    register_module("up", up_);
    register_module("down", down_);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = x + mix_(attend(attention_(norm1_(x))));
    return x + down_(torch::gelu(up_(norm2_(x))));
  }

 private:
  /// From queries, keys and values [n, t, 3 * width] to [n, t, width]; nothing looks ahead.
  static torch::Tensor attend(const torch::Tensor& joined) {
    const auto n = joined.size(0);
    const auto t = joined.size(1);
    const auto parts = joined.view({n, t, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const auto scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)) /
                        std::sqrt(double(kWidth) / double(kHeads));
    const auto ahead = torch::ones({t, t}, torch::kBool).triu(1);
    const auto shares =
        scores.masked_fill(ahead, -std::numeric_limits<double>::infinity()).softmax(-1);
    return torch::matmul(shares, parts[2]).transpose(1, 2).reshape({n, t, kWidth});
  }

  nn::LayerNorm norm1_{nn::LayerNormOptions({kWidth})};
  nn::Linear attention_{kWidth, 3 * kWidth};
  nn::Linear mix_{kWidth, kWidth};
  nn::LayerNorm norm2_{nn::LayerNormOptions({kWidth})};
  nn::Linear up_{kWidth, 4 * kWidth};
  nn::Linear down_{4 * kWidth, kWidth};
};

class Transformer final : public Net {
 public:
  explicit Transformer(std::size_t classes) {
    const auto count = static_cast<std::int64_t>(classes);
    characters_ = register_module("characters", nn::Embedding(count, kWidth));
    places_ = register_module("places", nn::Embedding(std::int64_t{kContext}, kWidth));
    for (int i = 0; i < kLayers; ++i) {
      layers_->push_back(std::make_shared<Layer>());
    }
    register_module("layers", layers_);
    norm_ = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    classes_ = register_module("classes", nn::Linear(kWidth, count));
    for (auto& parameter : parameters()) {
      if (parameter.dim() > 1) {
        nn::init::normal_(parameter, 0, kDeviation);
      }
    }
  }
  torch::Tensor forward(torch::Tensor x) override {
    const auto places = torch::arange(x.size(1), torch::kLong);
    return classes_(norm_(layers_->forward(characters_(x) + places_(places))));
  }

 private:
  nn::Embedding characters_{nullptr};
  nn::Embedding places_{nullptr};
  nn::Sequential layers_;
  nn::LayerNorm norm_{nullptr};
  nn::Linear classes_{nullptr};
};

}  // namespace

std::shared_ptr<Net> make_transformer(std::size_t classes) {
  return std::make_shared<Transformer>(classes);
}

}  // namespace fashion_mnist

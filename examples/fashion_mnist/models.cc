// SPDX-License-Identifier: Apache-2.0
#include "models.hpp"

#include <utility>

#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/pooling.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace fashion_mnist {
namespace {

namespace nn = torch::nn;

nn::Conv2d convolution(int inputs, int outputs, int size, int stride, int padding) {
  return nn::Conv2d(
      nn::Conv2dOptions(inputs, outputs, size).stride(stride).padding(padding).bias(false));
}

/// Two convolutions and two layers: small enough for a laptop, good for over 90 %.
class Cnn final : public Net {
 public:
  Cnn() {
    register_module("conv1", conv1_);
    register_module("conv2", conv2_);
    register_module("fc1", fc1_);
    register_module("fc2", fc2_);
  }
  torch::Tensor forward(torch::Tensor x) override {
    x = torch::max_pool2d(torch::relu(conv1_(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2_(x)), 2);
    return fc2_(torch::relu(fc1_(x.flatten(1))));
  }

 private:
  nn::Conv2d conv1_{nn::Conv2dOptions(1, 32, 3).padding(1)};
  nn::Conv2d conv2_{nn::Conv2dOptions(32, 64, 3).padding(1)};
  nn::Linear fc1_{64 * 7 * 7, 128};
  nn::Linear fc2_{128, 10};
};

/// Many bytes for little work: what a slow network likes least.
class Mlp final : public Net {
 public:
  Mlp() {
    register_module("fc1", fc1_);
    register_module("fc2", fc2_);
    register_module("fc3", fc3_);
  }
  torch::Tensor forward(torch::Tensor x) override {
    x = torch::relu(fc1_(x.flatten(1)));
    return fc3_(torch::relu(fc2_(x)));
  }

 private:
  nn::Linear fc1_{784, 2048};
  nn::Linear fc2_{2048, 2048};
  nn::Linear fc3_{2048, 10};
};

class Block final : public nn::Module {
 public:
  Block(int inputs, int outputs, int stride)
      : conv1_(register_module("conv1", convolution(inputs, outputs, 3, stride, 1))),
        norm1_(register_module("norm1", nn::BatchNorm2d(outputs))),
        conv2_(register_module("conv2", convolution(outputs, outputs, 3, 1, 1))),
        norm2_(register_module("norm2", nn::BatchNorm2d(outputs))) {
    if (stride != 1 || inputs != outputs) {
      shortcut_ = register_module(
          "shortcut",
          nn::Sequential(convolution(inputs, outputs, 1, stride, 0), nn::BatchNorm2d(outputs)));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = norm2_(conv2_(torch::relu(norm1_(conv1_(x)))));
    return torch::relu(y + (shortcut_.is_empty() ? x : shortcut_->forward(x)));
  }

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm2d norm1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d norm2_;
  nn::Sequential shortcut_{nullptr};
};

/// He et al., "Deep Residual Learning for Image Recognition", 2015, with a 3 x 3 stem for small
/// pictures.
class ResNet18 final : public Net {
 public:
  ResNet18()
      : stem_(register_module("stem", convolution(1, 64, 3, 1, 1))),
        norm_(register_module("norm", nn::BatchNorm2d(64))) {
    int inputs = 64;
    for (const auto& [outputs, stride] :
         {std::pair{64, 1}, {64, 1}, {128, 2}, {128, 1}, {256, 2}, {256, 1}, {512, 2}, {512, 1}}) {
      layers_->push_back(std::make_shared<Block>(inputs, outputs, stride));
      inputs = outputs;
    }
    register_module("layers", layers_);
    classes_ = register_module("classes", nn::Linear(512, 10));
  }
  torch::Tensor forward(torch::Tensor x) override {
    x = layers_->forward(torch::relu(norm_(stem_(x))));
    return classes_(x.mean({2, 3}));
  }

 private:
  nn::Conv2d stem_;
  nn::BatchNorm2d norm_;
  nn::Sequential layers_;
  nn::Linear classes_{nullptr};
};

}  // namespace

std::shared_ptr<Net> make_model(const std::string& name, std::size_t classes) {
  if (name == "cnn") {
    return std::make_shared<Cnn>();
  }
  if (name == "mlp") {
    return std::make_shared<Mlp>();
  }
  if (name == "resnet18") {
    return std::make_shared<ResNet18>();
  }
  if (name == "transformer") {
    return make_transformer(classes);
  }
  return nullptr;
}

}  // namespace fashion_mnist

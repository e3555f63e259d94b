// SPDX-License-Identifier: Apache-2.0
// The second example, after ../hello_engine.cc: trains a small net on Fashion-MNIST.  alone.cc does
// it with libtorch, together.cc with several ranks.  Compare them with diff.  To build and start:
//   cmake --preset release && cmake --build build/release --target stretto together
//   build/release/cli/stretto run -n 2 -- build/release/examples/together
#include "stretto/libtorch.hpp"

#include <cstdio>
#include <string>
#include <vector>

#include <torch/torch.h>
#include <zlib.h>

constexpr int kBatch = 64;
constexpr int kSteps = 200;

/// The elements of a gzipped file of the dataset, without its header.
torch::Tensor read(const std::string& name, std::size_t header, std::size_t count) {
  const std::string path = "/usr/share/datasets/fashion-mnist/" + name;
  std::vector<unsigned char> bytes(header + count);
  gzFile file = gzopen(path.c_str(), "rb");
  TORCH_CHECK(file != nullptr, "cannot read ", path, ": install dataset-fashion-mnist");
  const int got = gzread(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  TORCH_CHECK(got == static_cast<int>(bytes.size()), path, " is too short");
  return torch::from_blob(bytes.data() + header, {static_cast<long>(count)}, torch::kUInt8).clone();
}

int main() {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Flatten(),
                            torch::nn::Linear(784, 256),
                            torch::nn::ReLU(),
                            torch::nn::Linear(256, 10));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const auto pictures = read("train-images-idx3-ubyte.gz", 16, 60000 * 784)
                            .view({60000, 784})
                            .to(torch::kFloat32)
                            .div(255);
  const auto labels = read("train-labels-idx1-ubyte.gz", 8, 60000).to(torch::kInt64);
  const auto group = stretto::libtorch::join();
  stretto::libtorch::DistributedDataParallel ddp(group, *net);
  const int rank = static_cast<int>(group->rank());
  const int ranks = static_cast<int>(group->size());
  double loss_value = 0;
  for (int step = 0; step < kSteps; ++step) {
    const int begin = (step * ranks + rank) * kBatch % (60000 - kBatch);
    const auto output = net->forward(pictures.narrow(0, begin, kBatch));
    const auto loss = torch::nn::functional::cross_entropy(output, labels.narrow(0, begin, kBatch));
    optimizer.zero_grad();
    loss.backward();
    ddp.finish_step();
    optimizer.step();
    loss_value = loss.item<double>();
  }
  ddp.shutdown();
  std::printf("final loss %.4f\n", loss_value);
  return 0;
}

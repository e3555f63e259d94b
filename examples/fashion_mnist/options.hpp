// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sampler.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace fashion_mnist {

struct Options {
  std::string model = "cnn";
  std::size_t epochs = 2;
  std::size_t steps = 0;   ///< instead of epochs, after the warm-up; 0: not given
  std::size_t warmup = 0;  ///< steps at the start that are not timed
  std::size_t batch = 64;  ///< pictures or windows of text per rank and step
  std::string optimizer = "sgd";
  double learning_rate = 0;  ///< 0: what suits the model and the optimizer
  double momentum = 0.9;
  bool decay = false;  ///< of the learning rate, which first rises
  std::string data;    ///< empty: where Debian has the pictures; the transformer must be told
  Sharding sharding = Sharding::kMixed;
  bool exchange = true;
  bool compare_sequential = false;
  std::string checkpoint;
  bool resume = false;
  std::string trace;
  bool json = false;
  bool hash = false;
  bool flip_bit = false;  ///< of one gradient of the last rank's, once
  std::uint64_t seed = 1;
  std::optional<std::size_t> test_count;  ///< not given: what suits the model
};

/// Fills the options from the command line, or says with which code to end.
std::optional<int> parse(int argc, char** argv, Options& options);

}  // namespace fashion_mnist

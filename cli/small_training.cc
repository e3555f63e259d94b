// SPDX-License-Identifier: Apache-2.0
#include "small_training.hpp"

#include "coded_mean.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

namespace stretto::cli {
namespace {

constexpr std::size_t kInputs = 64;
constexpr std::size_t kHidden = 128;
constexpr std::size_t kClasses = 10;
constexpr std::size_t kTestCount = 4000;
constexpr std::size_t kParameters = 4;

/// SplitMix64: the same numbers on every host.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t word() {
    state_ += 0x9e3779b97f4a7c15U;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31U);
  }
  /// The sum of four uniform numbers, with mean 0 and variance 1: normal, nearly.
  float normal() {
    std::int32_t sum = 0;
    std::uint64_t bits = word();
    for (int i = 0; i < 4; ++i, bits >>= 16U) {
      sum += static_cast<std::int32_t>(bits & 0xffffU);
    }
    return static_cast<float>(sum - 2 * 0xffff) * (1.7320508F / 65536);
  }

 private:
  std::uint64_t state_;
};

/// Weights lie input by input: [inputs][outputs].
struct Weights {
  std::array<std::vector<float>, kParameters> parts{std::vector<float>(kInputs * kHidden),
                                                    std::vector<float>(kHidden),
                                                    std::vector<float>(kHidden* kClasses),
                                                    std::vector<float>(kClasses)};
};
/// Length of a row of each; 0: a vector.
constexpr std::array<std::size_t, kParameters> kRows{kHidden, 0, kClasses, 0};

struct Example {
  std::array<float, kInputs> x;
  std::size_t label = 0;
};

using Hidden = std::array<float, kHidden>;
using Scores = std::array<float, kClasses>;

/// What there is to learn.
class Directions {
 public:
  explicit Directions(std::uint64_t seed) {
    Random random(seed);
    for (auto& direction : directions_) {
      std::generate(direction.begin(), direction.end(), [&] { return random.normal(); });
    }
  }
  Example draw(Random& random) const {
    Example example;
    std::generate(example.x.begin(), example.x.end(), [&] { return random.normal(); });
    float most = 0;
    for (std::size_t c = 0; c < kClasses; ++c) {
      float along = 0;
      for (std::size_t i = 0; i < kInputs; ++i) {
        along += directions_[c][i] * example.x[i];
      }
      if (c == 0 || along > most) {
        most = along;
        example.label = c;
      }
    }
    return example;
  }

 private:
  std::array<std::array<float, kInputs>, kClasses> directions_{};
};

/// out += x * weights
template <std::size_t kIn, std::size_t kOut>
void apply(const std::array<float, kIn>& x,
           const std::vector<float>& weights,
           std::array<float, kOut>& out) {
  for (std::size_t i = 0; i < kIn; ++i) {
    for (std::size_t j = 0; j < kOut; ++j) {
      out[j] += x[i] * weights[i * kOut + j];
    }
  }
}

/// The same for the gradients: of the weights, and of what they are applied to.
template <std::size_t kIn, std::size_t kOut>
void add_outer(const std::array<float, kIn>& x,
               const std::array<float, kOut>& slope,
               std::vector<float>& gradient) {
  for (std::size_t i = 0; i < kIn; ++i) {
    for (std::size_t j = 0; j < kOut; ++j) {
      gradient[i * kOut + j] += x[i] * slope[j];
    }
  }
}

Scores forward(const Weights& weights, const Example& example, Hidden& hidden) {
  std::copy(weights.parts[1].begin(), weights.parts[1].end(), hidden.begin());
  apply(example.x, weights.parts[0], hidden);
  for (float& value : hidden) {
    value = std::max(value, 0.0F);
  }
  Scores scores;
  std::copy(weights.parts[3].begin(), weights.parts[3].end(), scores.begin());
  apply(hidden, weights.parts[2], scores);
  return scores;
}

/// Turns scores into shares; the loss of the label.
double softmax(Scores& scores, std::size_t label) {
  const float largest = *std::max_element(scores.begin(), scores.end());
  float sum = 0;
  for (float& score : scores) {
    score = std::exp(score - largest);
    sum += score;
  }
  for (float& score : scores) {
    score /= sum;
  }
  return -std::log(std::max(static_cast<double>(scores[label]), 1e-30));
}

/// Adds one example's part of the gradient.
void backward(const Weights& weights, const Example& example, float scale, Weights& gradient) {
  Hidden hidden;
  Scores slope = forward(weights, example, hidden);
  softmax(slope, example.label);
  slope[example.label] -= 1;
  for (float& value : slope) {
    value *= scale;
  }
  add_outer(hidden, slope, gradient.parts[2]);
  Hidden hidden_slope;
  for (std::size_t i = 0; i < kHidden; ++i) {
    float sum = 0;
    for (std::size_t j = 0; j < kClasses; ++j) {
      sum += slope[j] * weights.parts[2][i * kClasses + j];
    }
    hidden_slope[i] = hidden[i] > 0 ? sum : 0;
  }
  add_outer(example.x, hidden_slope, gradient.parts[0]);
  for (std::size_t j = 0; j < kClasses; ++j) {
    gradient.parts[3][j] += slope[j];
  }
  for (std::size_t i = 0; i < kHidden; ++i) {
    gradient.parts[1][i] += hidden_slope[i];
  }
}

/// All ranks, which have the same weights.
class Trainer {
 public:
  Trainer(const SmallTraining& training, const std::shared_ptr<const spi::Codec>& codec)
      : training_(training), directions_(training.seed), gradients_(training.ranks) {
    Random random(training.seed + 1);
    for (std::size_t part = 0; part < kParameters; ++part) {
      auto& weights = weights_.parts[part];
      if (kRows[part] > 0) {
        const auto inputs = static_cast<float>(weights.size() / kRows[part]);
        std::generate(
            weights.begin(), weights.end(), [&] { return random.normal() / std::sqrt(inputs); });
      }
      means_.emplace_back(kRows[part] > 0 ? codec : nullptr,
                          weights.size(),
                          kRows[part],
                          training.ranks,
                          training.seed + part);
    }
    // One that keeps the momentum itself must not be followed by another.
    momentum_ = codec != nullptr && codec->traits().owns_momentum ? 0 : training.momentum;
  }

  Status step(std::size_t number) {
    for (std::size_t rank = 0; rank < training_.ranks; ++rank) {
      gradients_[rank] = Weights();
      Random random(training_.seed * 1'000'003 + number * 1009 + rank);
      for (std::size_t i = 0; i < training_.batch; ++i) {
        backward(weights_,
                 directions_.draw(random),
                 1.0F / static_cast<float>(training_.batch),
                 gradients_[rank]);
      }
    }
    // Down to nothing, so that what the last inputs were does not matter.
    const float rate = training_.learning_rate * static_cast<float>(training_.steps - number) /
                       static_cast<float>(training_.steps);
    for (std::size_t part = 0; part < kParameters; ++part) {
      STRETTO_TRY(update(part, rate));
    }
    return {};
  }

  SmallOutcome test() const {
    SmallOutcome outcome;
    Random random(training_.seed + 2);
    for (std::size_t i = 0; i < kTestCount; ++i) {
      const Example example = directions_.draw(random);
      Hidden hidden;
      Scores scores = forward(weights_, example, hidden);
      const auto guess = std::max_element(scores.begin(), scores.end()) - scores.begin();
      outcome.accuracy += static_cast<std::size_t>(guess) == example.label ? 1 : 0;
      outcome.loss += softmax(scores, example.label);
    }
    outcome.accuracy /= kTestCount;
    outcome.loss /= kTestCount;
    outcome.wire_bytes_per_step = wire_bytes_ / static_cast<double>(training_.steps);
    return outcome;
  }

 private:
  /// SGD with momentum, on the mean.
  Status update(std::size_t part, float rate) {
    auto& weights = weights_.parts[part];
    joined_.clear();
    for (const Weights& gradient : gradients_) {
      joined_.insert(joined_.end(), gradient.parts[part].begin(), gradient.parts[part].end());
    }
    mean_.resize(weights.size());
    STRETTO_TRY(means_[part].average(joined_, mean_));
    wire_bytes_ += static_cast<double>(means_[part].wire_bytes());
    auto& velocity = velocity_.parts[part];
    for (std::size_t i = 0; i < weights.size(); ++i) {
      velocity[i] = momentum_ * velocity[i] + mean_[i];
      weights[i] -= rate * velocity[i];
    }
    return {};
  }

  const SmallTraining training_;
  const Directions directions_;
  float momentum_ = 0;
  double wire_bytes_ = 0;
  Weights weights_;
  Weights velocity_;
  std::vector<Weights> gradients_;
  std::vector<CodedMean> means_;
  std::vector<float> joined_;
  std::vector<float> mean_;
};

}  // namespace

Result<SmallOutcome> train_small(const SmallTraining& training,
                                 std::shared_ptr<const spi::Codec> codec) {
  Trainer trainer(training, codec);
  for (std::size_t step = 0; step < training.steps; ++step) {
    STRETTO_TRY(trainer.step(step));
  }
  return trainer.test();
}

}  // namespace stretto::cli

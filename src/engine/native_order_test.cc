// SPDX-License-Identifier: Apache-2.0
// The engine over an exchange that adds in an order of its own: whole numbers come out exact, all
// ranks have the same bits, and it is used only where the user allows it.
#include "base/hash.hpp"
#include "device/adversarial/factory.hpp"
#include "registry/registry.hpp"
#include "tests/threads_as_ranks.hpp"

#include "stretto/engine.hpp"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace stretto {
namespace {

using testing::run_ranks;

const std::vector<std::size_t> kSizes{7, 70'001, 1, 0, 4099, 33};

EngineOptions ring() {
  EngineOptions options;
  options.exchange = ExchangeKind::kRing;
  options.order = OrderChoice::kAny;
  options.chunk_bytes = std::size_t{64} << 10;
  return options;
}

Result<std::unique_ptr<Engine>> make_engine(const std::shared_ptr<Group>& group,
                                            const EngineOptions& options) {
  STRETTO_TRY_ASSIGN(auto engine, Engine::create(group, options));
  for (std::size_t p = 0; p < kSizes.size(); ++p) {
    STRETTO_TRY(engine->add_parameter(
        {.name = "p" + std::to_string(p), .shape = {static_cast<std::int64_t>(kSizes[p])}}));
  }
  STRETTO_TRY(engine->commit());
  return engine;
}

/// One step; every rank makes its parameters ready in a random order of its own.
Status step(Engine& engine,
            const std::vector<std::vector<float>>& gradients,
            std::uint64_t samples,
            std::mt19937& random) {
  StepOptions options;
  options.samples = samples;
  STRETTO_TRY(engine.begin_step(options));
  std::vector<std::uint32_t> order(kSizes.size());
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), random);
  for (const std::uint32_t p : order) {
    STRETTO_TRY(
        engine.ready(ParameterId{p}, reinterpret_cast<const std::byte*>(gradients[p].data())));
  }
  return engine.finish_step().has_value() ? Status() : Status(StatusCode::kAborted, "no step");
}

const float* result_of(Engine& engine, std::size_t p) {
  return reinterpret_cast<const float*>(engine.result(ParameterId{static_cast<std::uint32_t>(p)}));
}

float whole_number(std::size_t rank, std::size_t p, std::size_t i) {
  return static_cast<float>((rank * 31 + p * 7 + i * 3) % 1021);
}

class EngineRing : public ::testing::TestWithParam<std::size_t> {};

TEST_P(EngineRing, MeansOfWholeNumbersAreExact) {
  const std::size_t ranks = GetParam();
  std::vector<std::uint64_t> samples;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    samples.push_back(rank % 3 == 1 ? 0 : rank + 1);  // zero is legal
  }
  const auto total = std::accumulate(samples.begin(), samples.end(), std::uint64_t{0});
  const auto scale = static_cast<float>(1.0 / static_cast<double>(total));
  run_ranks(ranks, [&](const std::shared_ptr<Group>& group) {
    const std::size_t rank = index_of(group->rank());
    auto made = make_engine(group, ring());
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    Engine& engine = **made;
    EXPECT_NE(engine.describe().find("ring over "), std::string::npos);
    EXPECT_NE(engine.describe().find(", order native"), std::string::npos);
    std::mt19937 random(static_cast<unsigned>(rank));
    std::vector<std::vector<float>> gradients;
    for (std::size_t p = 0; p < kSizes.size(); ++p) {
      gradients.emplace_back(kSizes[p]);
      for (std::size_t i = 0; i < kSizes[p]; ++i) {
        gradients[p][i] = whole_number(rank, p, i);
      }
    }
    for (int number = 0; number < 4; ++number) {
      const Status done = step(engine, gradients, samples[rank], random);
      ASSERT_TRUE(done.is_ok()) << done.to_string();
      for (std::size_t p = 0; p < kSizes.size(); ++p) {
        for (std::size_t i = 0; i < kSizes[p]; ++i) {
          float sum = 0;
          for (std::size_t r = 0; r < ranks; ++r) {
            sum += static_cast<float>(samples[r]) * whole_number(r, p, i);
          }
          ASSERT_EQ(result_of(engine, p)[i], sum * scale) << "parameter " << p << " element " << i;
        }
      }
    }
    EXPECT_TRUE(engine.shutdown().is_ok());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, EngineRing, ::testing::Values(2, 3, 4, 7));

/// A hash of all results of some steps, which must be the same on all ranks.
std::uint64_t hash_of_results(std::size_t ranks, const EngineOptions& options) {
  std::vector<std::uint64_t> hashes(ranks, 0);
  run_ranks(ranks, [&](const std::shared_ptr<Group>& group) {
    const std::size_t rank = index_of(group->rank());
    auto engine = make_engine(group, options).value();
    std::mt19937 random(static_cast<unsigned>(rank));
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<std::vector<float>> gradients;
    for (const std::size_t size : kSizes) {
      gradients.emplace_back(size);
    }
    for (int number = 0; number < 3; ++number) {
      for (auto& gradient : gradients) {
        std::generate(gradient.begin(), gradient.end(), [&] { return uniform(random); });
      }
      ASSERT_TRUE(step(*engine, gradients, rank + 1, random).is_ok());
      for (std::size_t p = 0; p < kSizes.size(); ++p) {
        hashes[rank] =
            hash_bytes(std::as_bytes(std::span(result_of(*engine, p), kSizes[p])), hashes[rank]);
      }
    }
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
  EXPECT_EQ(std::count(hashes.begin(), hashes.end(), hashes[0]), static_cast<int>(ranks));
  return hashes[0];
}

std::atomic<std::uint64_t> adversary_seed{0};

Result<std::unique_ptr<spi::Device>> make_adversary() {
  return device::make_adversarial_device(adversary_seed.fetch_add(1));
}

TEST(EngineNativeOrder, ReadinessThreadsAndTransportDoNotChangeTheBitsOfARing) {
  const std::uint64_t expected = hash_of_results(3, ring());
  EngineOptions options = ring();
  options.transport = "tcp";
  EXPECT_EQ(hash_of_results(3, options), expected) << "tcp";
  options = ring();
  options.reduction_threads = 2;
  EXPECT_EQ(hash_of_results(3, options), expected) << "threads";
  options = ring();
  options.scratch_bytes = 1;
  options.link = parse_link("1gbit,100us").value();
  EXPECT_EQ(hash_of_results(3, options), expected) << "least scratch, shaped";
  registry::replace_device_for_tests(make_adversary);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(hash_of_results(3, ring()), expected) << "adversary " << adversary_seed;
  }
  registry::replace_device_for_tests(nullptr);
}

TEST(EngineNativeOrder, IsRefusedUnlessItIsAskedFor) {
  run_ranks(1, [](const std::shared_ptr<Group>& group) {
    EngineOptions options = ring();
    options.order = OrderChoice::kRank;
    const auto engine = Engine::create(group, options);
    ASSERT_FALSE(engine.has_value());
    EXPECT_EQ(engine.error().code(), StatusCode::kInvalidArgument);
  });
}

}  // namespace
}  // namespace stretto

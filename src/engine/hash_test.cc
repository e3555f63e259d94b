// SPDX-License-Identifier: Apache-2.0
// The weights after some steps, as one hash: the same on all ranks and whatever the schedule, chunk
// size, transport, exchange, number of threads and instruction set, and that of a plain program
// which adds in rank order; another as soon as anything about the gradients is another.
#include "base/hash.hpp"

#include "base/mutex.hpp"
#include "device/adversarial/factory.hpp"
#include "kernels/kernels.hpp"
#include "registry/registry.hpp"
#include "tests/threads_as_ranks.hpp"
#include "transport/ucx/factory.hpp"

#include "stretto/engine.hpp"
#include "stretto/spi/conformance/repetition.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace stretto {
namespace {

/// Above 4 MiB, so that the three chunk sizes make different chunks; awkward sizes among them.
const std::vector<std::int64_t> kSizes{7, 700'001, 1, 0, 90'000, 300'007, 256, 4099};
constexpr std::size_t kSteps = 2;
constexpr std::size_t kMostRanks = 4;
constexpr float kLearningRate = 0.1F;

std::size_t elements() {
  return static_cast<std::size_t>(std::accumulate(kSizes.begin(), kSizes.end(), std::int64_t{0}));
}

std::size_t first_of(std::size_t parameter) {
  const auto end = kSizes.begin() + static_cast<std::ptrdiff_t>(parameter);
  return static_cast<std::size_t>(std::accumulate(kSizes.begin(), end, std::int64_t{0}));
}

/// Numbers below 1 of different sizes, so that a sum depends on its order.
std::vector<float> draw(std::uint64_t seed, std::size_t rank, std::size_t step) {
  std::uint64_t state = (seed * kSteps + step) * kMostRanks + rank;
  std::vector<float> numbers(elements());
  for (float& number : numbers) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const auto whole = static_cast<float>(static_cast<std::int32_t>(state >> 32));
    number = std::ldexp(whole, -31 - static_cast<int>(state >> 16 & 7U));
  }
  return numbers;
}

/// The gradients of one rank and step; drawn once.
const std::vector<float>& gradients(std::uint64_t seed, std::size_t rank, std::size_t step) {
  static std::map<std::tuple<std::uint64_t, std::size_t, std::size_t>, std::vector<float>> drawn;
  static Mutex mutex;
  MutexLock lock(mutex);
  auto& numbers = drawn[{seed, rank, step}];
  if (numbers.empty()) {
    numbers = draw(seed, rank, step);
  }
  return numbers;
}

/// What a few ranks do.
struct Training {
  std::size_t ranks = 3;
  EngineOptions options = {};
  std::uint64_t seed = 1;
  bool flip_a_bit = false;     ///< of one gradient of the last rank's
  bool leave_one_out = false;  ///< the last rank once takes its own gradient in place of the mean
};

void update(std::span<float> weights, const float* gradient) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i] -= kLearningRate * gradient[i];
  }
}

std::uint64_t hash_of(const std::vector<float>& weights) {
  return hash_bytes(std::as_bytes(std::span(weights)));
}

/// What a program without any engine computes; ranks are added in `order`.
std::uint64_t plainly_computed(const std::vector<std::size_t>& order) {
  std::vector<float> weights(elements(), 0.5F);
  for (std::size_t step = 0; step < kSteps; ++step) {
    std::vector<float> mean(elements(), 0.0F);
    for (const std::size_t rank : order) {
      const std::vector<float>& mine = gradients(1, rank, step);
      std::transform(mean.begin(), mean.end(), mine.begin(), mean.begin(), std::plus<>());
    }
    const auto scale = static_cast<float>(1.0 / static_cast<double>(order.size()));
    std::for_each(mean.begin(), mean.end(), [scale](float& value) { value *= scale; });
    update(weights, mean.data());
  }
  return hash_of(weights);
}

std::vector<std::size_t> rank_order(std::size_t ranks) {
  std::vector<std::size_t> order(ranks);
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

std::uint64_t expected_of(std::size_t ranks) {
  static std::array<std::uint64_t, kMostRanks + 1> known{};
  if (known[ranks] == 0) {
    known[ranks] = plainly_computed(rank_order(ranks));
  }
  return known[ranks];
}

/// One step of one rank; the output layer's gradient is first, as in backward.
void do_step(Engine& engine,
             const Training& run,
             std::size_t rank,
             std::size_t step,
             std::vector<float>& weights) {
  const bool last = rank == run.ranks - 1;
  std::vector<float> mine = gradients(run.seed, rank, step);
  if (run.flip_a_bit && last && step == kSteps - 1) {
    float& one = mine[500'000];
    one = std::bit_cast<float>(std::bit_cast<std::uint32_t>(one) ^ (1U << 12));
  }
  ASSERT_TRUE(engine.begin_step({}).is_ok());
  for (std::size_t p = kSizes.size(); p-- > 0;) {
    const auto* gradient = reinterpret_cast<const std::byte*>(mine.data() + first_of(p));
    ASSERT_TRUE(engine.ready(ParameterId{static_cast<std::uint32_t>(p)}, gradient).is_ok());
  }
  const auto report = engine.finish_step();
  ASSERT_TRUE(report.has_value()) << report.error().to_string();
  if (run.options.chunk_bytes != EngineOptions::kAutomatic) {
    EXPECT_GE(report->chunks, elements() * sizeof(float) / run.options.chunk_bytes);
  }
  for (std::size_t p = 0; p < kSizes.size(); ++p) {
    const bool left_out = run.leave_one_out && last && step == 0;
    const auto* mean =
        reinterpret_cast<const float*>(engine.result(ParameterId{static_cast<std::uint32_t>(p)}));
    update(std::span(weights).subspan(first_of(p), static_cast<std::size_t>(kSizes[p])),
           left_out ? mine.data() + first_of(p) : mean);
  }
}

/// The hash of each rank's weights.
std::vector<std::uint64_t> train(const Training& run) {
  std::vector<std::uint64_t> hashes(run.ranks);
  testing::run_ranks(run.ranks, [&](const std::shared_ptr<Group>& group) {
    const std::size_t rank = index_of(group->rank());
    auto engine = Engine::create(group, run.options).value();
    for (std::size_t p = 0; p < kSizes.size(); ++p) {
      ASSERT_TRUE(engine->add_parameter({"p" + std::to_string(p), {kSizes[p]}}).has_value());
    }
    const Status committed = engine->commit();
    ASSERT_TRUE(committed.is_ok()) << committed.to_string();
    std::vector<float> weights(elements(), 0.5F);
    for (std::size_t step = 0; step < kSteps; ++step) {
      ASSERT_NO_FATAL_FAILURE(do_step(*engine, run, rank, step, weights));
    }
    hashes[rank] = hash_of(weights);
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
  return hashes;
}

/// All ranks end with the expected weights.
void expect_the_hash(const Training& run) {
  const auto hashes = train(run);
  const std::uint64_t expected = expected_of(run.ranks);
  for (std::size_t rank = 0; rank < run.ranks; ++rank) {
    EXPECT_EQ(hashes[rank], expected) << "rank " << rank;
  }
}

/// What moves gradients: an exchange, over a transport where it uses one.
struct Way {
  ExchangeKind exchange;
  std::string transport;
};

std::vector<Way> ways() {
  std::vector<Way> list{{ExchangeKind::kShared, "inproc"}};
  for (const ExchangeKind exchange : {ExchangeKind::kOwner, ExchangeKind::kOneHop}) {
    list.push_back({exchange, "inproc"});
    list.push_back({exchange, "tcp"});
    list.push_back({exchange, "ucx"});
  }
  return list;
}

// Under sanitizers, which are ten times slower, each way goes once, with all its threads.
constexpr bool kAll = spi::conformance::kRepetition > 1;

template <typename T>
std::vector<T> all_or(const std::vector<T>& all, const T& one) {
  return kAll ? all : std::vector<T>{one};
}

using Configuration = std::tuple<Way, Schedule, std::size_t, std::size_t, std::size_t>;

std::string word(std::string_view text) {
  std::string result(text);
  std::erase(result, '-');
  return result;
}

std::string configuration_name(const ::testing::TestParamInfo<Configuration>& info) {
  const auto& [way, schedule, chunk_bytes, threads, ranks] = info.param;
  return word(to_string(way.exchange)) + "_" + way.transport + "_" + word(to_string(schedule)) +
         "_chunks" + std::to_string(chunk_bytes >> 10) + "k_threads" + std::to_string(threads) +
         "_ranks" + std::to_string(ranks);
}

class EngineHash : public ::testing::TestWithParam<Configuration> {};

TEST_P(EngineHash, IsThatOfThePlainProgramOnAllRanks) {
  Training run;
  Way way;
  std::tie(way,
           run.options.schedule,
           run.options.chunk_bytes,
           run.options.reduction_threads,
           run.ranks) = GetParam();
  if (way.transport == "ucx" && !transport::ucx_version()) {
    GTEST_SKIP() << "built without UCX";
  }
  run.options.exchange = way.exchange;
  run.options.transport = way.transport;
  expect_the_hash(run);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    EngineHash,
    ::testing::Combine(::testing::ValuesIn(ways()),
                       ::testing::ValuesIn(all_or({Schedule::kBackward, Schedule::kSequential},
                                                  Schedule::kBackward)),
                       ::testing::ValuesIn(all_or<std::size_t>({64 << 10, 1 << 20, 4 << 20},
                                                               64 << 10)),
                       ::testing::ValuesIn(all_or<std::size_t>({1, 3}, 3)),
                       ::testing::ValuesIn(all_or<std::size_t>({2, 3, 4}, 3))),
    configuration_name);

TEST(EngineHashOf, AShapedLinkIsTheSame) {
  Training run;
  run.options.link = parse_link("10gbit,100us").value();
  expect_the_hash(run);
}

/// Each instruction set that this processor has: AVX3 (which is AVX-512), AVX2, ..., scalar.
class EngineHashOnTarget : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override { ASSERT_TRUE(kernels::select_target(GetParam()).is_ok()); }
  void TearDown() override { ASSERT_TRUE(kernels::select_target(before_).is_ok()); }

 private:
  const std::string before_{kernels::target_name()};
};

TEST_P(EngineHashOnTarget, IsTheSame) {
  ASSERT_EQ(kernels::target_name(), GetParam());
  Training run;
  run.ranks = 4;
  run.options.reduction_threads = 1;
  for (const ExchangeKind exchange : {ExchangeKind::kOwner, ExchangeKind::kShared}) {
    run.options.exchange = exchange;
    expect_the_hash(run);
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         EngineHashOnTarget,
                         ::testing::ValuesIn(kernels::available_targets()),
                         [](const auto& target) { return word(target.param); });

std::atomic<std::uint64_t> adversary_seed{0};

Result<std::unique_ptr<spi::Device>> make_adversary() {
  return device::make_adversarial_device(adversary_seed.fetch_add(1));
}

TEST(EngineHashOf, ADeviceThatRunsWorkAsLateAsItMayIsTheSame) {
  for (std::uint64_t seed = 0; seed < 2 * spi::conformance::kRepetition; ++seed) {
    SCOPED_TRACE("seeds from " + std::to_string(100 * seed));
    adversary_seed = 100 * seed;
    registry::replace_device_for_tests(&make_adversary);
    expect_the_hash({.ranks = 2});
    registry::replace_device_for_tests(nullptr);
  }
}

TEST(EngineHashOf, AnotherOrderOfRanksIsAnother) {
  for (const std::size_t ranks : {3U, 4U}) {
    auto reversed = rank_order(ranks);
    std::reverse(reversed.begin(), reversed.end());
    EXPECT_NE(plainly_computed(reversed), expected_of(ranks));
  }
}

TEST(EngineHashOf, OneFlippedBitIsAnotherOnAllRanks) {
  const auto hashes = train({.flip_a_bit = true});
  EXPECT_NE(hashes[0], expected_of(3));
  EXPECT_EQ(hashes, std::vector<std::uint64_t>(3, hashes[0]));
}

TEST(EngineHashOf, AnotherSeedIsAnotherOnAllRanks) {
  const auto hashes = train({.seed = 2});
  EXPECT_NE(hashes[0], expected_of(3));
  EXPECT_EQ(hashes, std::vector<std::uint64_t>(3, hashes[0]));
}

TEST(EngineHashOf, ARankThatLeavesOneExchangeOutIsAnother) {
  const auto hashes = train({.leave_one_out = true});
  EXPECT_EQ(hashes[0], expected_of(3));
  EXPECT_EQ(hashes[1], expected_of(3));
  EXPECT_NE(hashes[2], expected_of(3));
}

}  // namespace
}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
#include "stretto/engine.hpp"

#include "tests/engine_settings.hpp"
#include "tests/patience.hpp"
#include "tests/threads_as_ranks.hpp"

#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>

namespace stretto {
namespace {

using testing::run_ranks;

/// A small model with awkward sizes: empty, one element, a prime, several chunks.
const std::vector<std::int64_t> kSizes{7, 70'001, 1, 0, 4099, 256, 33};

std::vector<std::int64_t> shape_of(std::int64_t size) {
  return {size};
}

std::unique_ptr<Engine> make_engine(const std::shared_ptr<Group>& group,
                                    const EngineOptions& options,
                                    const std::vector<std::int64_t>& sizes = kSizes) {
  auto engine = Engine::create(group, options).value();
  for (std::size_t p = 0; p < sizes.size(); ++p) {
    EXPECT_TRUE(engine->add_parameter({"p" + std::to_string(p), shape_of(sizes[p])}).has_value());
  }
  const Status committed = engine->commit();
  EXPECT_TRUE(committed.is_ok()) << committed.to_string();
  return engine;
}

/// A whole number below 2^10 that depends on everything, so that sums of ranks are exact.
float value_of(std::size_t rank, std::size_t parameter, std::uint64_t step, std::size_t i) {
  return static_cast<float>((rank * 31 + parameter * 7 + step * 13 + i * 3) % 1021);
}

std::vector<float> gradient_of(std::size_t rank,
                               std::size_t parameter,
                               std::uint64_t step,
                               std::size_t size) {
  std::vector<float> gradient(size);
  for (std::size_t i = 0; i < size; ++i) {
    gradient[i] = value_of(rank, parameter, step, i);
  }
  return gradient;
}

const float* result_of(Engine& engine, std::size_t parameter) {
  return reinterpret_cast<const float*>(
      engine.result(ParameterId{static_cast<std::uint32_t>(parameter)}));
}

/// One step with exact gradients, parameters ready in a random order of this rank's own.
void run_step(Engine& engine, std::size_t rank, std::mt19937& random, const StepOptions& options) {
  ASSERT_TRUE(engine.begin_step(options).is_ok());
  std::vector<std::size_t> order(kSizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::vector<float>> gradients(kSizes.size());
  for (const std::size_t p : order) {
    gradients[p] = gradient_of(rank, p, engine.step(), static_cast<std::size_t>(kSizes[p]));
    ASSERT_TRUE(engine
                    .ready(ParameterId{static_cast<std::uint32_t>(p)},
                           reinterpret_cast<const std::byte*>(gradients[p].data()))
                    .is_ok());
  }
  const auto report = engine.finish_step();
  ASSERT_TRUE(report.has_value()) << report.error().to_string();
}

void expect_mean(Engine& engine, std::size_t ranks, const std::vector<std::uint64_t>& samples) {
  std::uint64_t total = 0;
  for (const std::uint64_t n : samples) {
    total += n;
  }
  for (std::size_t p = 0; p < kSizes.size(); ++p) {
    const float* result = result_of(engine, p);
    for (std::size_t i = 0; i < static_cast<std::size_t>(kSizes[p]); ++i) {
      float sum = 0;
      for (std::size_t r = 0; r < ranks; ++r) {
        sum += static_cast<float>(samples[r]) * value_of(r, p, engine.step(), i);
      }
      const float expected =
          total == 0 ? 0 : sum * static_cast<float>(1.0 / static_cast<double>(total));
      ASSERT_EQ(result[i], expected) << "parameter " << p << " element " << i;
    }
  }
}

class EngineRanks : public ::testing::TestWithParam<std::tuple<std::size_t, testing::Setting>> {
 protected:
  static std::size_t rank_count() { return std::get<0>(GetParam()); }
  static EngineOptions options() { return testing::options_of(std::get<1>(GetParam())); }

 private:
  testing::DeviceOf device_{std::get<1>(GetParam())};
};

TEST_P(EngineRanks, MeanOfAllRanksComesBackToEveryRank) {
  const std::size_t ranks = rank_count();
  run_ranks(ranks, [&](const std::shared_ptr<Group>& group) {
    const std::size_t rank = index_of(group->rank());
    EngineOptions chunked = options();
    chunked.chunk_bytes = 64 << 10;
    auto engine = make_engine(group, chunked);
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int step = 0; step < 6; ++step) {
      run_step(*engine, rank, random, {});
      expect_mean(*engine, ranks, std::vector<std::uint64_t>(ranks, 1));
    }
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
}

TEST_P(EngineRanks, UnevenBatchesAreWeightedBySamples) {
  const std::size_t ranks = rank_count();
  run_ranks(ranks, [&](const std::shared_ptr<Group>& group) {
    const std::size_t rank = index_of(group->rank());
    auto engine = make_engine(group, options());
    std::vector<std::uint64_t> samples(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      samples[r] = r % 3 == 2 ? 0 : r + 1;  // zero is legal
    }
    std::mt19937 random(7);
    StepOptions weighted;
    weighted.samples = samples[rank];
    run_step(*engine, rank, random, weighted);
    expect_mean(*engine, ranks, samples);
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
}

std::string ranks_name(const ::testing::TestParamInfo<EngineRanks::ParamType>& given) {
  return std::get<1>(given.param).name + "_ranks" + std::to_string(std::get<0>(given.param));
}

INSTANTIATE_TEST_SUITE_P(Sizes,
                         EngineRanks,
                         ::testing::Combine(::testing::Values(1, 4, 5, 7, 8),
                                            ::testing::Values(testing::settings()[0])),
                         ranks_name);
INSTANTIATE_TEST_SUITE_P(Settings,
                         EngineRanks,
                         ::testing::Combine(::testing::Values(2, 3),
                                            ::testing::ValuesIn(testing::settings())),
                         ranks_name);

class EngineStep : public testing::InSetting {};

INSTANTIATE_TEST_SUITE_P(Settings,
                         EngineStep,
                         ::testing::ValuesIn(testing::settings()),
                         testing::setting_name);

TEST_P(EngineStep, ParametersThatNobodyUsedAreZeroAndSaidToBe) {
  run_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const std::size_t rank = index_of(group->rank());
    auto engine = make_engine(group, options());
    ASSERT_TRUE(engine->begin_step({}).is_ok());
    const std::vector<float> ones(70'001, 1.0F);
    if (rank == 0) {  // p1 on one rank only, p4 on none
      ASSERT_TRUE(
          engine->ready(ParameterId{1}, reinterpret_cast<const std::byte*>(ones.data())).is_ok());
    }
    const auto report = engine->finish_step();
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->unused, rank == 0 ? 6U : 7U);
    EXPECT_EQ(result_of(*engine, 1)[70'000], 0.5F);
    EXPECT_EQ(result_of(*engine, 4)[0], 0.0F);
    EXPECT_TRUE(engine->used_by_any(ParameterId{1}));
    EXPECT_FALSE(engine->used_by_any(ParameterId{4}));
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
}

TEST_P(EngineStep, SeveralBackwardPassesAddUpAndTravelOnce) {
  run_ranks(2, [&](const std::shared_ptr<Group>& group) {
    auto engine = make_engine(group, options());
    StepOptions passes;
    passes.backward_passes = 3;
    ASSERT_TRUE(engine->begin_step(passes).is_ok());
    const std::vector<float> ones(4099, 1.0F);
    const auto* data = reinterpret_cast<const std::byte*>(ones.data());
    ASSERT_TRUE(engine->ready(ParameterId{4}, data).is_ok());
    ASSERT_TRUE(engine->ready(ParameterId{5}, data).is_ok());  // only in the first pass
    for (int pass = 1; pass < 3; ++pass) {
      ASSERT_TRUE(engine->next_backward().is_ok());
      ASSERT_TRUE(engine->ready(ParameterId{4}, data).is_ok());
    }
    const auto report = engine->finish_step();
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(result_of(*engine, 4)[4098], 3.0F);
    EXPECT_EQ(result_of(*engine, 5)[255], 1.0F);
    EXPECT_TRUE(engine->used_by_any(ParameterId{5}));
    EXPECT_EQ(report->unused, 5U);
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
}

TEST_P(EngineStep, AGradientThatIsReadyTwiceEndsTheStepOnAllRanksByName) {
  run_ranks(3, [&](const std::shared_ptr<Group>& group) {
    EngineOptions bounded = options();
    bounded.timeout = std::chrono::seconds(20);
    auto engine = make_engine(group, bounded);
    // On a busy machine the others may have heard of it before they begin.
    Status status = engine->begin_step({});
    const std::vector<float> ones(70'001, 1.0F);
    const auto* data = reinterpret_cast<const std::byte*>(ones.data());
    if (index_of(group->rank()) == 1) {
      ASSERT_TRUE(status.is_ok()) << status.to_string();
      ASSERT_TRUE(engine->ready(ParameterId{1}, data).is_ok());
      status = engine->ready(ParameterId{1}, data);
    } else if (status.is_ok()) {
      status = engine->finish_step().error();
    }
    EXPECT_NE(status.message().find("p1 was ready a second time"), std::string::npos)
        << status.to_string();
    EXPECT_FALSE(engine->begin_step({}).is_ok());
  });
}

TEST_P(EngineStep, ARankThatStopsCallingIsNamedWithWhatItHasNotSent) {
  const auto texts_after = [&](std::chrono::milliseconds timeout) {
    std::array<std::string, 2> texts;
    run_ranks(3, [&](const std::shared_ptr<Group>& group) {
      EngineOptions bounded = options();
      bounded.timeout = timeout;
      auto engine = make_engine(group, bounded);
      if (index_of(group->rank()) == 2) {
        // Stays until the others have given up.
        pollfd told{group->control().descriptor(), POLLIN, 0};
        EXPECT_EQ(::poll(&told, 1, 60'000), 1);
        return;
      }
      // One of the two may have given up before the other begins.
      const Status begun = engine->begin_step({});
      const auto finished = begun.is_ok() ? engine->finish_step() : fail(begun);
      ASSERT_FALSE(finished.has_value());
      texts[index_of(group->rank())] = finished.error().to_string();
    });
    return texts;
  };
  EXPECT_EQ(testing::with_patience([&](std::chrono::milliseconds timeout) -> std::string {
              for (const std::string& text : texts_after(timeout)) {
                if (text.find("step 1") == std::string::npos ||
                    text.find("rank 2 has not sent p") == std::string::npos) {
                  return "said: " + text;
                }
              }
              return {};
            }),
            "");
}

TEST_P(EngineStep, BroadcastGivesEveryRankTheBitsOfRankZero) {
  run_ranks(4, [&](const std::shared_ptr<Group>& group) {
    const std::size_t rank = index_of(group->rank());
    auto engine = make_engine(group, options());
    std::vector<std::vector<float>> values;
    std::vector<std::byte*> pointers;
    for (std::size_t p = 0; p < kSizes.size(); ++p) {
      values.push_back(gradient_of(rank, p, 0, static_cast<std::size_t>(kSizes[p])));
      if (rank == 0 && p == 0) {
        values[0][0] = -0.0F;
        values[0][1] = std::numeric_limits<float>::infinity();
        values[0][2] = std::numeric_limits<float>::denorm_min();
      }
      pointers.push_back(reinterpret_cast<std::byte*>(values.back().data()));
    }
    ASSERT_TRUE(engine->broadcast(pointers).is_ok());
    auto expected = gradient_of(0, 0, 0, 7);
    expected[0] = -0.0F;
    expected[1] = std::numeric_limits<float>::infinity();
    expected[2] = std::numeric_limits<float>::denorm_min();
    EXPECT_EQ(std::memcmp(values[0].data(), expected.data(), 28), 0);
    EXPECT_EQ(values[1], gradient_of(0, 1, 0, 70'001));
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
}

TEST_P(EngineStep, ARankWithoutFurtherBatchesFollowsUntilAllHaveEnded) {
  run_ranks(3, [&](const std::shared_ptr<Group>& group) {
    const std::size_t rank = index_of(group->rank());
    auto engine = make_engine(group, options());
    std::mt19937 random(5);
    const std::size_t batches = 2 + rank;  // 2, 3 and 4
    std::size_t steps = 0;
    while (true) {
      StepOptions following;
      following.ended = steps >= batches;
      following.samples = following.ended ? 0 : 1;
      ASSERT_TRUE(engine->begin_step(following).is_ok());
      std::vector<float> one(7, 1.0F);
      if (!following.ended) {
        ASSERT_TRUE(
            engine->ready(ParameterId{0}, reinterpret_cast<const std::byte*>(one.data())).is_ok());
      }
      const auto report = engine->finish_step();
      ASSERT_TRUE(report.has_value());
      if (report->all_ended) {
        break;
      }
      ++steps;
      EXPECT_EQ(result_of(*engine, 0)[0], 1.0F) << "the mean is over those who have samples";
    }
    EXPECT_EQ(steps, 4U);
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
}

TEST_P(EngineStep, OrderIsLearnedAndAgreed) {
  std::mutex mutex;
  std::vector<std::size_t> chunks;
  run_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const std::vector<std::int64_t> sizes(16, 64);
    auto engine = make_engine(group, options(), sizes);
    std::vector<float> ones(64, 1.0F);
    for (int step = 0; step < 3; ++step) {
      ASSERT_TRUE(engine->begin_step({}).is_ok());
      for (std::size_t i = 0; i < 16; ++i) {
        // Odd ones first: neighbours in memory are far apart in time.
        const std::size_t p = i < 8 ? 2 * i + 1 : 2 * (i - 8);
        ASSERT_TRUE(engine
                        ->ready(ParameterId{static_cast<std::uint32_t>(p)},
                                reinterpret_cast<const std::byte*>(ones.data()))
                        .is_ok());
      }
      const auto report = engine->finish_step();
      ASSERT_TRUE(report.has_value());
      EXPECT_EQ(result_of(*engine, 15)[63], 1.0F);
      std::lock_guard lock(mutex);
      chunks.push_back(report->chunks);
    }
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
  EXPECT_EQ(*std::min_element(chunks.begin(), chunks.end()), 2U);  // one and the footer
  EXPECT_GT(*std::max_element(chunks.begin(), chunks.end()), 10U);
}

TEST_P(EngineStep, ReplicasThatDifferAreNamed) {
  run_ranks(3, [&](const std::shared_ptr<Group>& group) {
    auto engine = make_engine(group, options());
    std::vector<std::vector<float>> values;
    std::vector<const std::byte*> pointers;
    for (const std::int64_t size : kSizes) {
      values.emplace_back(static_cast<std::size_t>(size), 1.0F);
      pointers.push_back(reinterpret_cast<const std::byte*>(values.back().data()));
    }
    EXPECT_TRUE(engine->check_replicas(pointers).is_ok());
    if (index_of(group->rank()) == 2) {
      values[4][4000] = 1.0000001F;
    }
    const Status status = engine->check_replicas(pointers);
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_NE(
        status.message().find("p4 is the first parameter that differs from rank 0's, on rank 2"),
        std::string::npos)
        << status.to_string();
  });
}

TEST_P(EngineStep, NonFiniteGradientsAreCounted) {
  run_ranks(2, [&](const std::shared_ptr<Group>& group) {
    auto engine = make_engine(group, options());
    std::vector<float> bad(7, std::numeric_limits<float>::quiet_NaN());
    ASSERT_TRUE(engine->begin_step({}).is_ok());
    ASSERT_TRUE(
        engine->ready(ParameterId{0}, reinterpret_cast<const std::byte*>(bad.data())).is_ok());
    EXPECT_EQ(engine->finish_step()->non_finite, 1U);
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
}

TEST(EngineUse, CallsInTheWrongOrderSaySo) {
  run_ranks(1, [&](const std::shared_ptr<Group>& group) {
    auto engine = Engine::create(group, {}).value();
    EXPECT_EQ(engine->begin_step({}).code(), StatusCode::kInvalidArgument);
    ASSERT_TRUE(engine->add_parameter({"w", {4}}).has_value());
    EXPECT_FALSE(engine->add_parameter({"w", {4}}).has_value());
    EXPECT_FALSE(engine->add_parameter({"", {4}}).has_value());
    ASSERT_TRUE(engine->commit().is_ok());
    EXPECT_FALSE(engine->add_parameter({"v", {4}}).has_value());
    EXPECT_EQ(engine->ready(ParameterId{0}).code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(engine->finish_step().has_value());
    ASSERT_TRUE(engine->begin_step({}).is_ok());
    EXPECT_FALSE(engine->begin_step({}).is_ok());
    EXPECT_FALSE(engine->next_backward().is_ok());
    EXPECT_FALSE(engine->ready(ParameterId{9}).is_ok());
    EXPECT_TRUE(engine->finish_step().has_value());
    EXPECT_TRUE(engine->shutdown().is_ok());
    EXPECT_FALSE(engine->begin_step({}).is_ok());
  });
}

}  // namespace
}  // namespace stretto

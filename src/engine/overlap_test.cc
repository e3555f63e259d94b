// SPDX-License-Identifier: Apache-2.0
// What leaves when: part of a chunk once its timer has run out, a gradient once its event is done;
// and another plan once gradients come in another order.
#include "tests/engine_settings.hpp"
#include "tests/manual_event.hpp"
#include "tests/patience.hpp"
#include "tests/threads_as_ranks.hpp"

#include "stretto/engine.hpp"

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace stretto {
namespace {

using testing::ManualEvent;
using testing::run_ranks;

std::unique_ptr<Engine> make_engine(const std::shared_ptr<Group>& group,
                                    const EngineOptions& options,
                                    std::size_t parameters,
                                    std::int64_t elements) {
  auto engine = Engine::create(group, options).value();
  for (std::size_t p = 0; p < parameters; ++p) {
    EXPECT_TRUE(engine->add_parameter({"p" + std::to_string(p), {elements}}).has_value());
  }
  const Status committed = engine->commit();
  EXPECT_TRUE(committed.is_ok()) << committed.to_string();
  return engine;
}

ParameterId id_of(std::size_t parameter) {
  return ParameterId{static_cast<std::uint32_t>(parameter)};
}

const float* result_of(Engine& engine, std::size_t parameter) {
  return reinterpret_cast<const float*>(engine.result(id_of(parameter)));
}

const std::byte* bytes_of(const std::vector<float>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

class EngineFlush : public testing::InSetting {
 protected:
  // With two ranks a chunk of two parameters has two shards: one parameter each.
  static constexpr std::int64_t kElements = 32'768;
  static EngineOptions one_chunk() {
    EngineOptions chosen = options();
    chosen.chunk_bytes = std::size_t{256} << 10;
    return chosen;
  }
};

TEST_P(EngineFlush, HalfAChunkComesHomeBeforeTheOtherHalfIsReady) {
  run_ranks(2, [](const std::shared_ptr<Group>& group) {
    auto engine = make_engine(group, one_chunk(), 2, kElements);
    const std::vector<float> ones(kElements, 1.0F);
    for (int step = 0; step < 3; ++step) {
      ASSERT_TRUE(engine->begin_step({}).is_ok());
      ASSERT_TRUE(engine->ready(id_of(0), bytes_of(ones)).is_ok());
      // Only the timer can send it: the chunk is not full, and the step does not end before.
      const Status home = engine->wait_gradient(id_of(0));
      ASSERT_TRUE(home.is_ok()) << home.to_string();
      EXPECT_EQ(result_of(*engine, 0)[kElements - 1], 1.0F);
      ASSERT_TRUE(engine->ready(id_of(1), bytes_of(ones)).is_ok());
      const auto report = engine->finish_step();
      ASSERT_TRUE(report.has_value()) << report.error().to_string();
      EXPECT_EQ(report->chunks, 2U) << "both halves are one chunk; the other is the footer";
      EXPECT_EQ(result_of(*engine, 1)[0], 1.0F);
    }
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
}

TEST_P(EngineFlush, HalfAChunkStaysUntilTheTimerRunsOut) {
  const auto failures_after = [](std::chrono::milliseconds timeout) {
    std::array<Status, 2> failures;
    run_ranks(2, [&](const std::shared_ptr<Group>& group) {
      EngineOptions patient = one_chunk();
      patient.flush_after = std::chrono::hours(1);
      patient.timeout = timeout;
      auto engine = make_engine(group, patient, 2, kElements);
      const std::vector<float> ones(kElements, 1.0F);
      // The other rank may have given up already.
      Status waited = engine->begin_step({});
      if (waited.is_ok()) {
        waited = engine->ready(id_of(0), bytes_of(ones));
      }
      if (waited.is_ok()) {
        waited = engine->wait_gradient(id_of(0));
      }
      failures[index_of(group->rank())] = waited;
    });
    return failures;
  };
  EXPECT_EQ(testing::with_patience([&](std::chrono::milliseconds timeout) -> std::string {
              for (const Status& failure : failures_after(timeout)) {
                if (failure.message().find("p0") == std::string_view::npos) {
                  return "said: " + failure.to_string();
                }
              }
              return {};
            }),
            "");
}

INSTANTIATE_TEST_SUITE_P(Settings,
                         EngineFlush,
                         ::testing::ValuesIn(testing::settings()),
                         testing::setting_name);

class EngineProduced : public testing::InSetting {};

TEST_P(EngineProduced, AGradientIsReadWhenItsEventIsDoneAndNotBefore) {
  run_ranks(2, [](const std::shared_ptr<Group>& group) {
    constexpr std::size_t kElements = 5000;
    auto engine = make_engine(group, options(), 2, kElements);
    for (int step = 0; step < 3; ++step) {
      ASSERT_TRUE(engine->begin_step({}).is_ok());
      std::vector<float> late(kElements, std::numeric_limits<float>::quiet_NaN());
      const std::vector<float> there(kElements, 2.0F);
      ManualEvent produced;
      ASSERT_TRUE(engine->ready(id_of(1), bytes_of(late), &produced).is_ok());
      ASSERT_TRUE(engine->ready(id_of(0), bytes_of(there)).is_ok());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // for who would read too early
      std::fill(late.begin(), late.end(), 3.0F);
      produced.finish();
      const auto report = engine->finish_step();
      ASSERT_TRUE(report.has_value()) << report.error().to_string();
      EXPECT_EQ(report->non_finite, 0U);
      EXPECT_EQ(result_of(*engine, 0)[kElements - 1], 2.0F);
      EXPECT_EQ(result_of(*engine, 1)[kElements - 1], 3.0F);
    }
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
}

INSTANTIATE_TEST_SUITE_P(Settings,
                         EngineProduced,
                         ::testing::ValuesIn(testing::settings()),
                         testing::setting_name);

class EngineReplan : public testing::InSetting {
 protected:
  static constexpr std::size_t kParameters = 16;
  static constexpr std::int64_t kElements = 64;
  static constexpr std::uint64_t kReversedFrom = 3;
  static constexpr std::uint64_t kOddFirstFrom = 6;
  static constexpr std::uint64_t kSteps = 8;

  /// Which parameter is the n-th of a step.
  static std::size_t nth(std::uint64_t step, std::size_t n) {
    if (step < kReversedFrom) {
      return n;
    }
    if (step < kOddFirstFrom) {
      return kParameters - 1 - n;
    }
    constexpr std::size_t kHalf = kParameters / 2;
    return n < kHalf ? 2 * n + 1 : 2 * (n - kHalf);
  }

  static float value_of(std::size_t rank, std::uint64_t step, std::size_t p, std::size_t i) {
    return static_cast<float>(1000 * step + 10 * p + i + 2 * rank);
  }

  static void do_step(Engine& engine, std::size_t rank, std::uint64_t step) {
    ASSERT_TRUE(engine.begin_step({}).is_ok());
    std::vector<std::vector<float>> gradients(kParameters, std::vector<float>(kElements));
    for (std::size_t n = 0; n < kParameters; ++n) {
      // It is rank 0's order that counts.
      const std::size_t p = rank == 0 ? nth(step, n) : n;
      for (std::size_t i = 0; i < kElements; ++i) {
        gradients[p][i] = value_of(rank, step, p, i);
      }
      ASSERT_TRUE(engine.ready(id_of(p), bytes_of(gradients[p])).is_ok());
    }
    const auto report = engine.finish_step();
    ASSERT_TRUE(report.has_value()) << report.error().to_string();
    // The last order parts neighbours in memory; the first two do not.
    EXPECT_EQ(report->chunks, step <= kOddFirstFrom ? 2U : kParameters + 1) << "step " << step;
  }

  static void expect_results(Engine& engine,
                             std::uint64_t step,
                             const std::vector<const float*>& places) {
    for (std::size_t p = 0; p < kParameters; ++p) {
      const float* result = result_of(engine, p);
      ASSERT_EQ(result, places[p]) << "memory moved in step " << step;
      for (std::size_t i = 0; i < kElements; ++i) {
        ASSERT_EQ(result[i], value_of(0, step, p, i) + 1) << "step " << step << ", p" << p;
      }
    }
  }

  /// The steps before which the plan changed, as a rank's trace has it.
  static std::vector<std::uint64_t> replans_in(const std::filesystem::path& trace) {
    std::ifstream file(trace);
    std::vector<std::uint64_t> steps;
    for (const auto& event : nlohmann::json::parse(file)) {
      if (event.at("name") == "replan") {
        steps.push_back(event.at("args").at("step"));
      }
    }
    return steps;
  }
};

TEST_P(EngineReplan, AnotherOrderMakesAnotherPlanAndMovesNoMemory) {
  const std::filesystem::path trace =
      ::testing::TempDir() + "replan." + std::to_string(::getpid()) + "." + GetParam().name;
  run_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const std::size_t rank = index_of(group->rank());
    EngineOptions chosen = options();
    chosen.trace_file = trace;
    auto engine = make_engine(group, chosen, kParameters, kElements);
    std::vector<const float*> places;
    for (std::size_t p = 0; p < kParameters; ++p) {
      places.push_back(result_of(*engine, p));
    }
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      ASSERT_NO_FATAL_FAILURE(do_step(*engine, rank, step));
      ASSERT_NO_FATAL_FAILURE(expect_results(*engine, step, places));
    }
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
  for (const char* rank : {".0", ".1"}) {
    const std::string path = trace.string() + rank;
    EXPECT_EQ(replans_in(path), (std::vector<std::uint64_t>{kReversedFrom + 1, kOddFirstFrom + 1}))
        << "rank " << rank;
    std::filesystem::remove(path);
  }
}

INSTANTIATE_TEST_SUITE_P(Settings,
                         EngineReplan,
                         ::testing::ValuesIn(testing::settings()),
                         testing::setting_name);

}  // namespace
}  // namespace stretto

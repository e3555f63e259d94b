// SPDX-License-Identifier: Apache-2.0
// The step report where it is known what went on: over an emulated link a chunk takes no less than
// its bytes need, and the test knows when a training thread waited inside Stretto.  Everything here
// is an inequality that delays of a busy machine only make wider.
#include "tests/threads_as_ranks.hpp"

#include "stretto/engine.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace stretto {
namespace {

using testing::run_ranks;

// One chunk of two shards: 128 KiB from each rank to the other, then 128 KiB of sums back.
constexpr std::int64_t kElements = 65'536;
constexpr double kBytesPerSecond = 20e6;
constexpr double kWireMs = kElements * sizeof(float) / kBytesPerSecond * 1e3;  // 13.1
constexpr double kNanosecond = 1e-6;                                           // in ms
constexpr int kSteps = 5;

EngineOptions over_link(Schedule schedule) {
  EngineOptions options;
  options.schedule = schedule;
  options.link.bytes_per_second = kBytesPerSecond;
  options.chunk_bytes = kElements * sizeof(float);
  return options;
}

std::unique_ptr<Engine> make_engine(const std::shared_ptr<Group>& group, Schedule schedule) {
  auto engine = Engine::create(group, over_link(schedule)).value();
  EXPECT_TRUE(engine->add_parameter({"weight", {kElements}}).has_value());
  const Status committed = engine->commit();
  EXPECT_TRUE(committed.is_ok()) << committed.to_string();
  return engine;
}

double milliseconds(TimePoint::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

/// Calls, and adds up how long they took.
class Outside {
 public:
  template <typename Call>
  auto time(Call call) {
    const TimePoint begin = Clock::now();
    auto result = call();
    total_ms_ += milliseconds(Clock::now() - begin);
    return result;
  }
  double total_ms() const { return total_ms_; }

 private:
  double total_ms_ = 0;
};

/// What holds for every step, by the definitions.
void expect_consistent(const StepReport& report) {
  EXPECT_NEAR(report.compute_ms, report.step_ms - report.exposed_ms, kNanosecond);
  EXPECT_GE(report.compute_ms, 0);
  EXPECT_GE(report.hidden_ms, -kNanosecond);
  EXPECT_LE(report.hidden_ms, report.busy_ms + kNanosecond);
  EXPECT_LE(report.hidden_ms, report.compute_ms + kNanosecond) << "hidden while not waiting";
  EXPECT_LE(report.busy_ms - report.hidden_ms, report.exposed_ms + kNanosecond);
  EXPECT_LE(report.busy_ms, report.step_ms + kNanosecond);
  EXPECT_GE(report.busy_ms, kWireMs) << "no chunk is faster than its link";
}

TEST(StepReportOverALink, HidesNothingUnderTheSequentialSchedule) {
  run_ranks(2, [](const std::shared_ptr<Group>& group) {
    auto engine = make_engine(group, Schedule::kSequential);
    for (int step = 0; step < kSteps; ++step) {
      ASSERT_TRUE(engine->begin_step({}).is_ok());
      ASSERT_TRUE(engine->ready(ParameterId{0}).is_ok());
      constexpr auto kCompute = std::chrono::milliseconds(20);
      std::this_thread::sleep_for(kCompute);
      const auto report = engine->finish_step();
      ASSERT_TRUE(report.has_value()) << report.error().to_string();
      expect_consistent(*report);
      EXPECT_NEAR(report->hidden_ms, 0, kNanosecond);
      EXPECT_GE(report->exposed_ms, kWireMs);
      EXPECT_GE(report->compute_ms, milliseconds(kCompute));
    }
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
}

TEST(StepReportOverALink, HidesUnderTheBackwardScheduleWhatPassesBesideComputing) {
  // Rank 1 waits inside Stretto.  Rank 0 computes until rank 1 has everything, so that its own
  // bytes have crossed the link while it did not wait.
  std::atomic<int> home_on_rank_1{0};
  run_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const bool waits = index_of(group->rank()) == 1;
    auto engine = make_engine(group, Schedule::kBackward);
    double least_unaccounted = std::numeric_limits<double>::max();
    TimePoint last = Clock::now();
    for (int step = 1; step <= kSteps; ++step) {
      Outside in_stretto;
      ASSERT_TRUE(engine->begin_step({}).is_ok());
      const TimePoint begun = Clock::now();
      ASSERT_TRUE(engine->ready(ParameterId{0}).is_ok());
      if (waits) {
        const Status home = in_stretto.time([&] { return engine->wait_gradient(ParameterId{0}); });
        ASSERT_TRUE(home.is_ok()) << home.to_string();
        home_on_rank_1 = step;
      } else {
        const Deadline deadline = Deadline::after(std::chrono::seconds(60));
        while (home_on_rank_1 < step && !deadline.passed()) {
          std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
      }
      const double computed = milliseconds(Clock::now() - begun) - in_stretto.total_ms();
      const auto report = in_stretto.time([&] { return engine->finish_step(); });
      ASSERT_TRUE(report.has_value()) << report.error().to_string();
      const TimePoint end = Clock::now();
      expect_consistent(*report);
      EXPECT_GE(report->compute_ms, computed - kNanosecond);
      EXPECT_LE(report->exposed_ms, in_stretto.total_ms() + kNanosecond);
      if (!waits) {
        EXPECT_GE(report->hidden_ms, kWireMs);
      }
      const double outside = milliseconds(end - last) - in_stretto.total_ms();
      least_unaccounted = std::min(least_unaccounted, report->compute_ms - outside);
      last = end;
    }
    // Every wait counts as one: what the report calls computing was spent outside of all waits.
    // (A thread can be held up on its way into a wait, but not in each of these steps.)
    EXPECT_LT(least_unaccounted, kWireMs / 2);
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
}

}  // namespace
}  // namespace stretto

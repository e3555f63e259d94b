// SPDX-License-Identifier: Apache-2.0
// Steps that do not go as they should: gradients that never come, queues that fill, connections
// that break, ranks that have ended, and what the engine says of them.
#include "tests/manual_event.hpp"
#include "tests/patience.hpp"
#include "tests/threads_as_ranks.hpp"

#include "stretto/engine.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace stretto {
namespace {

using testing::ManualEvent;
using testing::run_ranks;

std::byte* bytes_of(std::vector<float>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

std::vector<float> result_of(Engine& engine, ParameterId id, std::size_t count) {
  std::vector<float> values(count);
  std::memcpy(values.data(), engine.result(id), count * sizeof(float));
  return values;
}

/// A weight and a buffer that is averaged over the ranks.
struct WithBuffer {
  explicit WithBuffer(const std::shared_ptr<Group>& group) {
    engine = Engine::create(group, {}).value();
    weight = engine->add_parameter({"weight", {3}}).value();
    buffer = engine->add_parameter({"running", {3}, DType::kFloat32, Rule::kRankMean}).value();
    EXPECT_TRUE(engine->commit().is_ok());
  }
  std::unique_ptr<Engine> engine;
  ParameterId weight{};
  ParameterId buffer{};
};

TEST(EngineBuffers, ABroadcastOfAveragedBuffersIsRankZeros) {
  run_ranks(3, [](const std::shared_ptr<Group>& group) {
    WithBuffer with(group);
    const float own = index_of(group->rank()) == 0 ? 6.0F : 100.0F;
    std::vector<float> weight(3, own);
    std::vector<float> buffer(3, own);
    std::vector<std::byte*> values{bytes_of(weight), bytes_of(buffer)};
    ASSERT_TRUE(with.engine->broadcast(values).is_ok());
    EXPECT_EQ(weight, std::vector<float>(3, 6.0F));
    EXPECT_EQ(buffer, std::vector<float>(3, 6.0F));
    EXPECT_TRUE(with.engine->shutdown().is_ok());
  });
}

TEST(EngineBuffers, ARankThatHasEndedHasNoSayInTheMean) {
  run_ranks(3, [](const std::shared_ptr<Group>& group) {
    WithBuffer with(group);
    const std::size_t rank = index_of(group->rank());
    StepOptions options;
    options.ended = rank == 1;
    options.samples = options.ended ? 0 : 1;
    std::vector<float> own(3, rank == 0 ? 10.0F : 20.0F);
    ASSERT_TRUE(with.engine->begin_step(options).is_ok());
    if (!options.ended) {
      ASSERT_TRUE(with.engine->ready(with.weight, bytes_of(own)).is_ok());
      ASSERT_TRUE(with.engine->ready(with.buffer, bytes_of(own)).is_ok());
    }
    ASSERT_TRUE(with.engine->finish_step().has_value());
    EXPECT_EQ(result_of(*with.engine, with.buffer, 3), std::vector<float>(3, 15.0F));
    EXPECT_EQ(result_of(*with.engine, with.weight, 3), std::vector<float>(3, 15.0F));
    EXPECT_TRUE(with.engine->shutdown().is_ok());
  });
}

/// A rank whose gradient waits for an event that never comes; returns what the step then said.
Status failure_of_a_late_gradient(std::size_t threads, std::chrono::milliseconds timeout) {
  Status failure;
  run_ranks(1, [&](const std::shared_ptr<Group>& group) {
    EngineOptions options;
    options.timeout = timeout;
    options.reduction_threads = threads;
    auto engine = Engine::create(group, options).value();
    const ParameterId id = engine->add_parameter({"late", {8}}).value();
    ASSERT_TRUE(engine->commit().is_ok());
    auto gradient = std::make_unique<std::vector<float>>(8, 1.0F);
    auto never = std::make_unique<ManualEvent>();
    ASSERT_TRUE(engine->begin_step({}).is_ok());
    ASSERT_TRUE(engine->ready(id, bytes_of(*gradient), never.get()).is_ok());
    const auto report = engine->finish_step();
    ASSERT_FALSE(report.has_value());
    failure = report.error();
    // AddressSanitizer sees whoever still looks at the event or reads the gradient.
    never->finish();
    never.reset();
    gradient.reset();
    EXPECT_EQ(engine->begin_step({}).code(), StatusCode::kDeadlineExceeded);
  });
  return failure;
}

TEST(EngineWaits, AGradientWhoseEventNeverComesIsNamedAndThenLeftAlone) {
  for (const std::size_t threads : {0U, 1U}) {
    EXPECT_EQ(testing::with_patience([&](std::chrono::milliseconds timeout) {
                const Status failure = failure_of_a_late_gradient(threads, timeout);
                const bool right = failure.code() == StatusCode::kDeadlineExceeded &&
                                   failure.message().find("late") != std::string_view::npos;
                return right ? std::string() : "said: " + failure.to_string();
              }),
              "");
  }
}

TEST(EngineWaits, AGradientIsTakenWhenItsMemoryIsTheCallersAgain) {
  run_ranks(1, [](const std::shared_ptr<Group>& group) {
    auto engine = Engine::create(group, {}).value();
    const ParameterId id = engine->add_parameter({"weight", {2}}).value();
    EXPECT_FALSE(engine->taken(id));
    ASSERT_TRUE(engine->commit().is_ok());
    std::vector<float> gradient(2, 1.0F);
    StepOptions options;
    options.backward_passes = 2;
    for (int step = 1; step <= 2; ++step) {
      ASSERT_TRUE(engine->begin_step(options).is_ok());
      ASSERT_TRUE(engine->ready(id, bytes_of(gradient)).is_ok());
      ASSERT_TRUE(engine->next_backward().is_ok());
      EXPECT_FALSE(engine->taken(id));
      ManualEvent late;
      ASSERT_TRUE(engine->ready(id, bytes_of(gradient), &late).is_ok());
      EXPECT_FALSE(engine->taken(id));
      late.finish();
      const auto deadline = Deadline::after(std::chrono::seconds(20));
      while (!engine->taken(id) && !deadline.passed()) {
        std::this_thread::yield();
      }
      ASSERT_TRUE(engine->taken(id));
      gradient.assign(2, 100.0F);  // it is ours again, and changes nothing
      ASSERT_TRUE(engine->finish_step().has_value());
      EXPECT_EQ(result_of(*engine, id, 2), std::vector<float>(2, step == 1 ? 2.0F : 200.0F));
    }
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
}

TEST(EngineWaits, ManyPassesBehindALateEventAllFindRoom) {
  constexpr std::size_t kParameters = 300;
  constexpr std::uint32_t kPasses = 20;
  run_ranks(1, [](const std::shared_ptr<Group>& group) {
    auto engine = Engine::create(group, {}).value();
    std::vector<ParameterId> ids;
    for (std::size_t p = 0; p < kParameters; ++p) {
      ids.push_back(engine->add_parameter({"p" + std::to_string(p), {1}}).value());
    }
    ASSERT_TRUE(engine->commit().is_ok());
    std::vector<float> gradient(1, 1.0F);
    ManualEvent late;
    StepOptions options;
    options.backward_passes = kPasses;
    ASSERT_TRUE(engine->begin_step(options).is_ok());
    std::thread finisher([&late] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      late.finish();
    });
    for (std::uint32_t pass = 0; pass < kPasses; ++pass) {
      if (pass > 0) {
        EXPECT_TRUE(engine->next_backward().is_ok());
      }
      for (const ParameterId id : ids) {
        const Status ready = engine->ready(id, bytes_of(gradient), &late);
        EXPECT_TRUE(ready.is_ok()) << ready.to_string();
      }
    }
    EXPECT_TRUE(engine->finish_step().has_value());
    finisher.join();
    EXPECT_EQ(result_of(*engine, ids[7], 1)[0], static_cast<float>(kPasses));
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
}

/// The sockets of this process that are connected over TCP.
std::vector<int> connected_sockets() {
  std::vector<int> found;
  for (int descriptor = 3; descriptor < 1024; ++descriptor) {
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
        peer.sin_family == AF_INET) {
      found.push_back(descriptor);
    }
  }
  return found;
}

TEST(EngineWaits, ABrokenConnectionOfTwoRanksIsToldToTheThird) {
  std::atomic<std::size_t> committed{0};
  std::atomic<bool> cut{false};
  std::atomic<std::size_t> heard{0};
  const auto began = Clock::now();
  run_ranks(3, [&](const std::shared_ptr<Group>& group) {
    EngineOptions options;
    options.transport = "tcp";
    options.exchange = ExchangeKind::kOwner;
    options.one_hop_bytes = 0;
    auto engine = Engine::create(group, options).value();
    const ParameterId id = engine->add_parameter({"weight", {3000}}).value();
    ASSERT_TRUE(engine->commit().is_ok());
    ASSERT_TRUE(engine->begin_step({}).is_ok());
    if (committed.fetch_add(1) + 1 == 3) {
      const auto sockets = connected_sockets();
      ASSERT_EQ(sockets.size(), 6U);  // both ends of three connections
      ::shutdown(sockets.front(), SHUT_RDWR);
      cut = true;
    }
    while (!cut) {
      std::this_thread::yield();
    }
    static_cast<void>(engine->ready(id));  // it may have heard already
    const auto report = engine->finish_step();
    EXPECT_FALSE(report.has_value());
    // Whoever has heard stays, so that the third does not learn it from their departure.
    ++heard;
    while (heard < 3 && Clock::now() - began < std::chrono::seconds(20)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  // The time-out is a minute, and no rank's control connection has ended.
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(20));
}

}  // namespace
}  // namespace stretto

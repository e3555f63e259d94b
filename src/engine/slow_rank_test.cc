// SPDX-License-Identifier: Apache-2.0
// One rank slowed at each stage in turn: the results stay the same, so nobody reads a slot that is
// being written.  Meant for TSan as much as for the hashes.
#include "base/fault_point.hpp"
#include "base/hash.hpp"

#include "stretto/engine.hpp"
#include "stretto/group.hpp"

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace stretto {
namespace {

constexpr std::size_t kParameters = 6;
constexpr std::int64_t kElements = 3000;  // three chunks of 4 KiB, the last one short
constexpr std::size_t kSteps = 4;

float value(std::size_t rank, std::size_t step, std::size_t parameter, std::size_t element) {
  return static_cast<float>((rank * 31 + step * 17 + parameter * 7 + element) % 101) / 7.0F;
}

/// Writes the next step's gradients as soon as finish_step allows, and hashes every result.
std::uint64_t train(const std::shared_ptr<Group>& group, const std::string& transport) {
  EngineOptions options;
  options.exchange = ExchangeKind::kOwner;
  options.transport = transport;
  options.chunk_bytes = 4096;
  options.one_hop_bytes = 512;
  auto engine = Engine::create(group, options);
  EXPECT_TRUE(engine.has_value());
  Engine& e = **engine;
  for (std::size_t p = 0; p < kParameters; ++p) {
    EXPECT_TRUE(e.add_parameter({"p" + std::to_string(p), {kElements}}).has_value());
  }
  EXPECT_TRUE(e.commit().is_ok());
  std::uint64_t hash = 0;
  const auto rank = static_cast<std::size_t>(index_of(group->rank()));
  for (std::size_t step = 0; step < kSteps; ++step) {
    EXPECT_TRUE(e.begin_step({}).is_ok());
    for (std::size_t p = kParameters; p-- > 0;) {
      const ParameterId id{static_cast<std::uint32_t>(p)};
      auto* gradient = reinterpret_cast<float*>(e.gradient_slot(id));
      for (std::size_t i = 0; i < static_cast<std::size_t>(kElements); ++i) {
        gradient[i] = value(rank, step, p, i);
      }
      EXPECT_TRUE(e.ready(id).is_ok());
    }
    const auto report = e.finish_step();
    if (!report) {
      ADD_FAILURE() << report.error().to_string();
      break;
    }
    for (std::size_t p = 0; p < kParameters; ++p) {
      const auto* result = e.result(ParameterId{static_cast<std::uint32_t>(p)});
      hash = hash * 1'000'003 + hash_bytes({result, kElements * sizeof(float)});
    }
  }
  EXPECT_TRUE(e.shutdown().is_ok());
  return hash;
}

std::vector<std::uint64_t> train_all(std::size_t ranks, const std::string& transport) {
  auto groups = Group::in_process(ranks);
  std::vector<std::uint64_t> hashes(ranks);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { hashes[rank] = train(groups[rank], transport); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return hashes;
}

class SlowRank : public ::testing::TestWithParam<std::tuple<std::size_t, std::string>> {};

TEST_P(SlowRank, GivesTheSameResults) {
  const auto [ranks, transport] = GetParam();
  ::testing::internal::CaptureStderr();
  const auto undisturbed = train_all(ranks, transport);
  for (const std::uint64_t hash : undisturbed) {
    EXPECT_EQ(hash, undisturbed[0]);
  }
  for (const char* stage : {"step.begin",
                            "chunk.launched",
                            "part.received",
                            "sum.posted",
                            "result.sent",
                            "step.footer",
                            "step.between"}) {
    for (std::size_t slow = 0; slow < ranks; ++slow) {
      ASSERT_TRUE(arm_fault(std::string(stage) + "@1:delay=300us", slow).is_ok());
      EXPECT_EQ(train_all(ranks, transport), undisturbed) << stage << ", rank " << slow;
      EXPECT_GT(fault_passes(), 0U) << stage;
      ASSERT_TRUE(arm_fault("", 0).is_ok());
    }
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");  // an orderly end is no loss
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         SlowRank,
                         ::testing::Combine(::testing::Values(2U, 3U, 4U),
                                            ::testing::Values("inproc", "tcp")),
                         [](const auto& parameter) {
                           return std::get<1>(parameter.param) +
                                  std::to_string(std::get<0>(parameter.param));
                         });

}  // namespace
}  // namespace stretto

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

std::uint64_t hash_with(std::uint64_t hash, const std::byte* result) {
  return hash * 1'000'003 + hash_bytes({result, kElements * sizeof(float)});
}

/// What all ranks end with: means of sums in rank order.
std::uint64_t plainly_computed(std::size_t ranks) {
  std::uint64_t hash = 0;
  const auto scale = static_cast<float>(1.0 / static_cast<double>(ranks));
  std::vector<float> mean(kElements);
  for (std::size_t step = 0; step < kSteps; ++step) {
    for (std::size_t p = 0; p < kParameters; ++p) {
      for (std::size_t i = 0; i < mean.size(); ++i) {
        float sum = value(0, step, p, i);
        for (std::size_t rank = 1; rank < ranks; ++rank) {
          sum += value(rank, step, p, i);
        }
        mean[i] = sum * scale;
      }
      hash = hash_with(hash, reinterpret_cast<const std::byte*>(mean.data()));
    }
  }
  return hash;
}

/// How gradients move, and the places at which an owner or its peers can be slow there.
struct Way {
  std::string name;
  ExchangeKind exchange;
  std::string transport;
  std::size_t threads;  ///< that add
  std::string begins;   ///< how the engine describes it
};

std::vector<Way> ways() {
  return {{"inproc", ExchangeKind::kOwner, "inproc", 0, "owner over inproc"},
          {"tcp", ExchangeKind::kOwner, "tcp", 0, "owner over tcp"},
          // Here peers read one another's gradients, and write one another's results, in place.
          {"shared", ExchangeKind::kAuto, "auto", 0, "shared"},
          {"shared_threads", ExchangeKind::kShared, "auto", 2, "shared"}};
}

std::vector<std::string> stages_of(const Way& way) {
  std::vector<std::string> stages{"step.begin",
                                  "chunk.launched",
                                  "part.received",
                                  "sum.posted",
                                  "result.sent",
                                  "step.footer",
                                  "step.between"};
  if (way.begins == "shared") {
    stages.emplace_back("sum.begin");
  }
  return stages;
}

/// Writes the next step's gradients as soon as finish_step allows, and hashes every result.
std::uint64_t train(const std::shared_ptr<Group>& group, const Way& way) {
  EngineOptions options;
  options.exchange = way.exchange;
  options.transport = way.transport;
  options.reduction_threads = way.threads;
  options.chunk_bytes = 4096;
  options.one_hop_bytes = 512;
  auto engine = Engine::create(group, options);
  EXPECT_TRUE(engine.has_value());
  Engine& e = **engine;
  for (std::size_t p = 0; p < kParameters; ++p) {
    EXPECT_TRUE(e.add_parameter({"p" + std::to_string(p), {kElements}}).has_value());
  }
  EXPECT_TRUE(e.commit().is_ok());
  EXPECT_TRUE(e.describe().starts_with(way.begins)) << e.describe();
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
      hash = hash_with(hash, e.result(ParameterId{static_cast<std::uint32_t>(p)}));
    }
  }
  EXPECT_TRUE(e.shutdown().is_ok());
  return hash;
}

std::vector<std::uint64_t> train_all(std::size_t ranks, const Way& way) {
  auto groups = Group::in_process(ranks);
  std::vector<std::uint64_t> hashes(ranks);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { hashes[rank] = train(groups[rank], way); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return hashes;
}

class SlowRank : public ::testing::TestWithParam<std::tuple<std::size_t, Way>> {};

TEST_P(SlowRank, GivesTheSameResults) {
  const auto& [ranks, way] = GetParam();
  ::testing::internal::CaptureStderr();
  const auto undisturbed = train_all(ranks, way);
  EXPECT_EQ(undisturbed, std::vector<std::uint64_t>(ranks, plainly_computed(ranks)));
  for (const std::string& stage : stages_of(way)) {
    for (std::size_t slow = 0; slow < ranks; ++slow) {
      ASSERT_TRUE(arm_fault(stage + "@1:delay=300us", slow).is_ok());
      EXPECT_EQ(train_all(ranks, way), undisturbed) << stage << ", rank " << slow;
      EXPECT_GT(fault_passes(), 0U) << stage;
      ASSERT_TRUE(arm_fault("", 0).is_ok());
    }
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");  // an orderly end is no loss
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         SlowRank,
                         ::testing::Combine(::testing::Values(2U, 3U, 4U),
                                            ::testing::ValuesIn(ways())),
                         [](const auto& parameter) {
                           return std::get<1>(parameter.param).name +
                                  std::to_string(std::get<0>(parameter.param));
                         });

}  // namespace
}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
// docs/algorithms.md says how many bytes an exchange sends; here they are counted.
#include "tests/threads_as_ranks.hpp"

#include <atomic>
#include <cstdint>

#include <gtest/gtest.h>

namespace stretto {
namespace {

Status train(const std::shared_ptr<Group>& group,
             const EngineOptions& options,
             std::int64_t elements,
             std::atomic<std::uint64_t>& payload) {
  STRETTO_TRY_ASSIGN(auto engine, Engine::create(group, options));
  STRETTO_TRY_ASSIGN(const auto id, engine->add_parameter({.name = "w", .shape = {elements}}));
  STRETTO_TRY(engine->commit());
  STRETTO_TRY(engine->begin_step({}));
  STRETTO_TRY(engine->ready(id));
  STRETTO_TRY_ASSIGN(const StepReport report, engine->finish_step());
  payload += report.payload_bytes;
  return engine->shutdown();
}

/// Bytes of gradients that all ranks together send in a step.
std::uint64_t payload_of(ExchangeKind exchange, std::size_t ranks, std::int64_t elements) {
  EngineOptions options;
  options.exchange = exchange;
  options.order = OrderChoice::kAny;
  options.transport = "inproc";
  options.chunk_bytes = std::size_t{128} << 10;
  std::atomic<std::uint64_t> payload{0};
  testing::run_ranks(ranks, [&](const std::shared_ptr<Group>& group) {
    const Status done = train(group, options, elements, payload);
    EXPECT_TRUE(done.is_ok()) << done.to_string();
  });
  return payload;
}

/// What one more byte of gradients costs all ranks together; the footer's bytes cancel out.
double bytes_per_byte(ExchangeKind exchange, std::size_t ranks) {
  constexpr std::int64_t kSmall = 100'000;
  constexpr std::int64_t kLarge = 300'000;
  const auto small = payload_of(exchange, ranks, kSmall);
  const auto large = payload_of(exchange, ranks, kLarge);
  return static_cast<double>(large - small) / static_cast<double>(4 * (kLarge - kSmall));
}

TEST(Costs, OwnerSendsTwoTimesPMinusOneBytesForEachByteAmongAllRanks) {
  for (const std::size_t ranks : {2U, 3U, 4U}) {
    const auto others = static_cast<double>(ranks - 1);
    EXPECT_DOUBLE_EQ(bytes_per_byte(ExchangeKind::kOwner, ranks), 2 * others) << ranks << " ranks";
  }
}

TEST(Costs, ARingSendsAsManyAsAnOwner) {
  for (const std::size_t ranks : {2U, 3U, 4U}) {
    const auto others = static_cast<double>(ranks - 1);
    EXPECT_DOUBLE_EQ(bytes_per_byte(ExchangeKind::kRing, ranks), 2 * others) << ranks << " ranks";
  }
}

TEST(Costs, OneHopSendsEachByteFromEveryRankToEveryOther) {
  for (const std::size_t ranks : {2U, 3U, 4U}) {
    const auto links = static_cast<double>(ranks * (ranks - 1));
    EXPECT_DOUBLE_EQ(bytes_per_byte(ExchangeKind::kOneHop, ranks), links) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
// One array of more than 2^31 elements, and messages of more than 2^32 bytes: no count may pass
// through 32 bits on the way.  Takes 9 GB of memory.
#include "rendezvous/group_test_support.hpp"
#include "rendezvous/socket.hpp"

#include "stretto/collective.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace stretto {
namespace {

constexpr std::size_t kRanks = 2;
constexpr std::size_t kCount = (std::size_t{1} << 31) + 12'345;  // elements of two bytes
constexpr std::size_t kBytes = 2 * kCount;
constexpr std::size_t kPeriod = 5;
constexpr std::size_t kBlock = kPeriod << 18;  // elements that are compared at once

Deadline late() {
  return Deadline::after(std::chrono::minutes(10));
}

std::size_t available_memory() {
  std::ifstream info("/proc/meminfo");
  std::string word;
  while (info >> word) {
    if (word == "MemAvailable:") {
      std::size_t kilobytes = 0;
      info >> kilobytes;
      return kilobytes << 10;
    }
  }
  return 0;
}

std::uint16_t bfloat16(std::size_t small_number) {
  const auto value = static_cast<float>(small_number);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16U);
}

/// Elements factor * (i % kPeriod) + offset, for i from 0 on.
std::vector<std::uint16_t> block_of(std::size_t factor, std::size_t offset) {
  std::vector<std::uint16_t> block(kBlock);
  for (std::size_t i = 0; i < kBlock; ++i) {
    block[i] = bfloat16(factor * (i % kPeriod) + offset);
  }
  return block;
}

/// Repeats a block over memory.
void fill(std::byte* data, std::size_t bytes, const std::vector<std::uint16_t>& block) {
  for (std::size_t at = 0; at < bytes; at += 2 * kBlock) {
    std::memcpy(data + at, block.data(), std::min(2 * kBlock, bytes - at));
  }
}

/// Whether memory is a block over and over, to the last byte; if not, where it is not.
::testing::AssertionResult repeats(const std::byte* data,
                                   std::size_t bytes,
                                   const std::vector<std::uint16_t>& block) {
  for (std::size_t at = 0; at < bytes; at += 2 * kBlock) {
    if (std::memcmp(data + at, block.data(), std::min(2 * kBlock, bytes - at)) != 0) {
      return ::testing::AssertionFailure() << "differs from byte " << at << " on";
    }
  }
  return ::testing::AssertionSuccess();
}

using Way = std::tuple<ExchangeKind, std::string>;

class LargeArray : public ::testing::TestWithParam<Way> {};

TEST_P(LargeArray, IsAddedGatheredAndBroadcastToTheLastElement) {
  // Never part of ./check, so no skip of it can go unnoticed there.
  if (available_memory() < (std::size_t{11} << 30)) {
    GTEST_SKIP() << "needs 11 GiB of free memory";
  }
  const std::uint16_t port = rendezvous::find_free_port().value();
  rendezvous::on_every_rank(kRanks, [&](std::size_t own) {
    // Joined, for its time-outs: to get so much memory alone may take a minute.
    GroupOptions joining;
    joining.rank = joining.local_rank = own;
    joining.size = joining.local_size = kRanks;
    joining.master_port = port;
    joining.timeout = std::chrono::minutes(10);
    joining.dead_after = std::chrono::minutes(1);
    auto group = Group::join(joining);
    ASSERT_TRUE(group.has_value()) << group.error().to_string();
    EngineOptions options;
    std::tie(options.exchange, options.transport) = GetParam();
    auto made = Communicator::create(*group, options);
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    Communicator& communicator = **made;
    const std::size_t rank = communicator.rank();
    auto memory = communicator.allocate(kBytes);
    ASSERT_TRUE(memory.has_value()) << memory.error().to_string();
    std::byte* const data = (*memory)->data();
    const auto finish = [](Result<Collective> started) {
      const Status status = started ? started->wait(late()) : started.error();
      EXPECT_TRUE(status.is_ok()) << status.to_string();
    };

    fill(data, kBytes, block_of(1, rank));
    finish(communicator.all_reduce(data, data, kCount, DType::kBFloat16, Reduction::kSum));
    EXPECT_TRUE(repeats(data, kBytes, block_of(2, 1)));

    // Each block has more than 2^31 bytes.
    constexpr std::size_t kHalf = kBytes / kRanks;
    std::memset(data, 0, kBytes);
    finish(communicator.barrier());
    fill(data + rank * kHalf, kHalf, block_of(1, 3 + rank));
    finish(communicator.all_gather(data + rank * kHalf, data, kHalf));
    EXPECT_TRUE(repeats(data, kHalf, block_of(1, 3)));
    EXPECT_TRUE(repeats(data + kHalf, kHalf, block_of(1, 4)));
    finish(communicator.barrier());

    // All together more than 2^32 bytes, in one message.
    if (rank == 1) {
      fill(data, kBytes, block_of(3, 2));
    }
    finish(communicator.broadcast(data, kBytes, 1));
    EXPECT_TRUE(repeats(data, kBytes, block_of(3, 2)));
    finish(communicator.barrier());
    (*group)->leave();
  });
}

INSTANTIATE_TEST_SUITE_P(Over,
                         LargeArray,
                         ::testing::Values(Way{ExchangeKind::kShared, "auto"},
                                           Way{ExchangeKind::kOwner, "tcp"}),
                         [](const auto& given) {
                           return std::string(to_string(std::get<0>(given.param)));
                         });

}  // namespace
}  // namespace stretto

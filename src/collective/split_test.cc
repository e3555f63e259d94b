// SPDX-License-Identifier: Apache-2.0
#include "collective/sub_group.hpp"
#include "rendezvous/group_test_support.hpp"
#include "rendezvous/socket.hpp"
#include "tests/threads_as_ranks.hpp"

#include "stretto/collective.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace stretto {
namespace {

using collective::SubGroup;
using testing::run_ranks;

Deadline soon() {
  return Deadline::after(std::chrono::seconds(30));
}

Status finish(Result<Collective> started) {
  return started ? started->wait(soon()) : started.error();
}

std::byte* bytes_of(std::vector<float>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

/// All collectives with values that tell who takes part: `base` is different in every part.
void try_everything(Communicator& communicator, float base) {
  const std::size_t ranks = communicator.size();
  const auto own = static_cast<float>(communicator.rank());
  float total = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    total += base + static_cast<float>(r);
  }
  constexpr std::size_t kCount = 30'001;
  auto arena = communicator.allocate(kCount * sizeof(float));
  ASSERT_TRUE(arena.has_value()) << arena.error().to_string();
  auto* in_arena = reinterpret_cast<float*>((*arena)->data());
  std::fill_n(in_arena, kCount, base + own);
  ASSERT_TRUE(
      finish(communicator.all_reduce(
                 (*arena)->data(), (*arena)->data(), kCount, DType::kFloat32, Reduction::kSum))
          .is_ok());
  EXPECT_EQ(std::count(in_arena, in_arena + kCount, total), kCount);

  std::vector<float> all(ranks * kCount, base + own);
  std::vector<float> part(kCount);
  ASSERT_TRUE(finish(communicator.reduce_scatter(
                         bytes_of(all), bytes_of(part), kCount, DType::kFloat32, Reduction::kSum))
                  .is_ok());
  EXPECT_EQ(std::count(part.begin(), part.end(), total), kCount);
  std::fill(part.begin(), part.end(), base + own);
  ASSERT_TRUE(finish(communicator.all_gather(bytes_of(part), bytes_of(all), kCount * sizeof(float)))
                  .is_ok());
  for (std::size_t r = 0; r < ranks; ++r) {
    EXPECT_EQ(all[r * kCount], base + static_cast<float>(r));
    EXPECT_EQ(all[(r + 1) * kCount - 1], base + static_cast<float>(r));
  }
  ASSERT_TRUE(
      finish(communicator.broadcast(bytes_of(part), kCount * sizeof(float), ranks - 1)).is_ok());
  EXPECT_EQ(part[kCount - 1], base + static_cast<float>(ranks - 1));
  ASSERT_TRUE(finish(communicator.barrier()).is_ok());
  if (ranks > 1) {
    const std::size_t next = (communicator.rank() + 1) % ranks;
    const std::size_t previous = (communicator.rank() + ranks - 1) % ranks;
    std::vector<float> mine{base + own};
    std::vector<float> theirs{0};
    auto sent = communicator.send(bytes_of(mine), sizeof(float), next);
    ASSERT_TRUE(finish(communicator.receive(bytes_of(theirs), sizeof(float), previous)).is_ok());
    ASSERT_TRUE(finish(std::move(sent)).is_ok());
    EXPECT_EQ(theirs[0], base + static_cast<float>(previous));
  }
  ASSERT_TRUE(finish(communicator.barrier()).is_ok());
}

using Way = std::tuple<ExchangeKind, std::string>;

EngineOptions options_for(const Way& way) {
  EngineOptions options;
  std::tie(options.exchange, options.transport) = way;
  options.chunk_bytes = 64 << 10;
  return options;
}

class Split : public ::testing::TestWithParam<Way> {
 protected:
  static std::unique_ptr<Communicator> connect(const std::shared_ptr<Group>& group) {
    auto made = Communicator::create(group, options_for(GetParam()));
    EXPECT_TRUE(made.has_value()) << made.error().to_string();
    return made.has_value() ? std::move(*made) : nullptr;
  }
  static void part_ways(const std::shared_ptr<Group>& group) {
    EXPECT_TRUE(group->control().all_gather("the end", {}, soon()).has_value());
  }
};

TEST_P(Split, EvenAndOddRanksDoEverythingAtOnce) {
  for (const std::size_t ranks : {2U, 3U, 4U, 5U}) {
    run_ranks(ranks, [](const std::shared_ptr<Group>& group) {
      auto whole = connect(group);
      const std::size_t rank = whole->rank();
      const auto color = static_cast<std::uint32_t>(rank % 2);
      auto part = whole->split(color, 0);
      ASSERT_TRUE(part.has_value()) << part.error().to_string();
      EXPECT_EQ((*part)->rank(), rank / 2);
      EXPECT_EQ((*part)->size(), (whole->size() + 1 - color) / 2);
      EXPECT_EQ((*part)->exchange_name(), whole->exchange_name());
      try_everything(**part, color == 0 ? 10.0F : 1000.0F);
      try_everything(*whole, 100.0F);
      whole.reset();  // the parts go on without it
      try_everything(**part, color == 0 ? 20.0F : 2000.0F);
      part_ways(group);
    });
  }
}

TEST_P(Split, OneHalfNeedsNothingOfTheOther) {
  run_ranks(4, [](const std::shared_ptr<Group>& group) {
    auto whole = connect(group);
    const auto color = static_cast<std::uint32_t>(whole->rank() / 2);
    auto part = whole->split(color, 0).value();
    if (color == 0) {  // the other half does nothing meanwhile
      try_everything(*part, 1.0F);
    }
    part_ways(group);
    if (color == 1) {
      try_everything(*part, 2.0F);
    }
    part_ways(group);
  });
}

TEST_P(Split, KeysOrderAndRanksWithoutColorStayOut) {
  run_ranks(4, [](const std::shared_ptr<Group>& group) {
    auto whole = connect(group);
    const std::size_t rank = whole->rank();
    const auto color = rank == 1 ? std::nullopt : std::optional<std::uint32_t>(7);
    auto part = whole->split(color, -static_cast<std::int64_t>(rank));
    ASSERT_TRUE(part.has_value()) << part.error().to_string();
    ASSERT_EQ(*part == nullptr, rank == 1);
    if (*part != nullptr) {
      constexpr std::array<std::size_t, 4> kExpected{2, 0, 1, 0};
      EXPECT_EQ((*part)->rank(), kExpected[rank]);
      EXPECT_EQ((*part)->size(), 3U);
      try_everything(**part, 5.0F);
    }
    part_ways(group);
  });
}

TEST_P(Split, PartsCanBeSplitDownToOneRank) {
  run_ranks(5, [](const std::shared_ptr<Group>& group) {
    auto whole = connect(group);
    const std::size_t rank = whole->rank();
    auto half = whole->split(rank < 3 ? 0 : 1, 0).value();
    auto quarter = half->split(static_cast<std::uint32_t>(half->rank() / 2), 0).value();
    const std::size_t expected = rank == 2 ? 1 : 2;
    EXPECT_EQ(quarter->size(), expected);
    auto alone = quarter->split(static_cast<std::uint32_t>(quarter->rank()), 0).value();
    EXPECT_EQ(alone->size(), 1U);
    try_everything(*alone, static_cast<float>(rank));
    try_everything(*quarter, 3.0F);
    half.reset();
    whole.reset();
    try_everything(*quarter, 4.0F);
    part_ways(group);
  });
}

TEST_P(Split, ErrorsSayWhichRanksOfTheWholeGroupAPartHas) {
  run_ranks(4, [](const std::shared_ptr<Group>& group) {
    auto whole = connect(group);
    const std::size_t rank = whole->rank();
    auto part = whole->split(static_cast<std::uint32_t>(rank % 2), 0).value();
    if (rank % 2 == 1) {
      std::vector<float> data(8, 1.0F);
      const Status status = finish(part->broadcast(bytes_of(data), rank, 0));
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      const std::string text(status.message());
      EXPECT_NE(text.find("broadcast of 1 bytes from rank 0"), std::string::npos) << text;
      EXPECT_NE(text.find("broadcast of 3 bytes from rank 0"), std::string::npos) << text;
      EXPECT_NE(text.find("from its rank 0 on ranks 1 and 3 of the whole group"), std::string::npos)
          << text;
    } else {
      try_everything(*part, 1.0F);
    }
    part_ways(group);
  });
}

/// Ranks that may end one by one: nobody else holds their groups.
void run_mortal_ranks(std::size_t ranks, const std::function<void(std::shared_ptr<Group>)>& body) {
  auto groups = Group::in_process(ranks);
  std::vector<std::thread> threads;
  for (auto& group : groups) {
    threads.emplace_back([&body](std::shared_ptr<Group> own) { body(std::move(own)); },
                         std::move(group));
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_P(Split, ALostRankEndsTheWaitsOfItsPartAndIsNamed) {
  std::latch survivors(3);
  run_mortal_ranks(4, [&](std::shared_ptr<Group> group) {
    auto whole = connect(group);
    const std::size_t rank = whole->rank();
    auto part = whole->split(static_cast<std::uint32_t>(rank % 2), 0).value();
    part_ways(group);  // all have their parts
    if (rank == 2) {
      return;  // lost: it goes without leaving
    }
    Status status;
    if (rank == 0) {
      status = finish(part->barrier());
    } else {
      // The other half cannot go on without a word either: the job has lost a rank.
      std::vector<float> data(1);
      const std::size_t peer = 1 - part->rank();
      status = finish(part->receive(bytes_of(data), sizeof(float), peer));
    }
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
    const std::string text(status.message());
    EXPECT_NE(text.find("whole group"), std::string::npos) << text;
    EXPECT_NE(text.find("2"), std::string::npos) << text;
    survivors.arrive_and_wait();
  });
}

TEST_P(Split, ARankThatLeavesEndsNothingInOtherParts) {
  run_mortal_ranks(4, [](std::shared_ptr<Group> group) {
    auto whole = connect(group);
    const auto color = static_cast<std::uint32_t>(whole->rank() % 2);
    auto part = whole->split(color, 0).value();
    whole.reset();
    if (color == 0) {
      group->leave();
      return;
    }
    try_everything(*part, 1.0F);
    group->leave();
  });
}

INSTANTIATE_TEST_SUITE_P(Over,
                         Split,
                         ::testing::Values(Way{ExchangeKind::kShared, "auto"},
                                           Way{ExchangeKind::kOwner, "inproc"},
                                           Way{ExchangeKind::kOwner, "tcp"}),
                         [](const auto& given) {
                           return std::string(to_string(std::get<0>(given.param))) + "_" +
                                  std::get<1>(given.param);
                         });

TEST(SplitOfProcesses, MeetsOverControlConnectionsAndFindsOutWhoIsOnOneHost) {
  const std::uint16_t port = rendezvous::find_free_port().value();
  rendezvous::on_every_rank(4, [&](std::size_t rank) {
    GroupOptions own;
    own.rank = rank;
    own.size = 4;
    own.local_rank = rank % 2;  // two hosts of two ranks, as far as the launcher knows
    own.local_size = 2;
    own.master_port = port;
    auto group = Group::join(own);
    ASSERT_TRUE(group.has_value()) << group.error().to_string();
    auto whole = Communicator::create(*group, {}).value();
    EXPECT_EQ(whole->exchange_name(), "owner");
    auto host = whole->split(static_cast<std::uint32_t>(rank / 2), 0);
    ASSERT_TRUE(host.has_value()) << host.error().to_string();
    EXPECT_EQ((*host)->exchange_name(), "shared");
    auto across = whole->split(static_cast<std::uint32_t>(rank % 2), 0);
    ASSERT_TRUE(across.has_value()) << across.error().to_string();
    EXPECT_EQ((*across)->exchange_name(), "owner");
    try_everything(**host, rank < 2 ? 1.0F : 50.0F);
    try_everything(**across, rank % 2 == 0 ? 7.0F : 90.0F);
    EXPECT_TRUE((*group)->control().all_gather("the end", {}, soon()).has_value());
    (*group)->leave();
  });
}

/// Sub-groups of even and odd ranks; the body runs on every rank with its own.
void run_halves(std::size_t ranks, const std::function<void(Group&, SubGroup&)>& body) {
  run_ranks(ranks, [&](const std::shared_ptr<Group>& group) {
    const auto color = static_cast<std::uint32_t>(index_of(group->rank()) % 2);
    auto part = SubGroup::split(group, {}, color, 0);
    ASSERT_TRUE(part.has_value()) << part.error().to_string();
    body(*group, **part);
    EXPECT_TRUE(group->control().all_gather("the end", {}, soon()).has_value());
  });
}

TEST(SubGroup, GathersManyBlobsAmongItsMembersOnly) {
  run_halves(5, [](Group& group, SubGroup& part) {
    EXPECT_EQ(part.members()[index_of(part.rank())], index_of(group.rank()));
    for (std::size_t round = 0; round < 100; ++round) {
      const spi::Bytes mine(round * 37 % 5000, std::byte(index_of(group.rank())));
      const auto all = part.all_gather("round " + std::to_string(round), mine, soon());
      ASSERT_TRUE(all.has_value()) << all.error().to_string();
      for (std::size_t member = 0; member < part.size(); ++member) {
        EXPECT_EQ((*all)[member], spi::Bytes(mine.size(), std::byte(part.members()[member])));
      }
    }
  });
}

TEST(SubGroup, NamesWhoDidNotCall) {
  run_halves(4, [](Group& group, SubGroup& part) {
    if (index_of(group.rank()) != 1) {
      return;
    }
    const Deadline brief = Deadline::after(std::chrono::milliseconds(20));
    const auto all = part.all_gather("supper", {}, brief);
    ASSERT_FALSE(all.has_value());
    EXPECT_EQ(all.error().code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(all.error().message(),
              "rank 0 waited in the all_gather for 'supper' until its deadline, but rank 1 did "
              "not call");
    EXPECT_FALSE(part.all_gather("more", {}, soon()).has_value()) << "ranks are out of step";
  });
}

TEST(SubGroup, TellsPurposesApart) {
  run_halves(4, [](Group& group, SubGroup& part) {
    const auto all = part.all_gather(index_of(group.rank()) < 2 ? "tea" : "coffee", {}, soon());
    ASSERT_FALSE(all.has_value());
    EXPECT_EQ(all.error().code(), StatusCode::kInvalidArgument) << all.error().to_string();
  });
}

TEST(SubGroup, AMemberThatIsGoneEndsAGather) {
  run_ranks(2, [](const std::shared_ptr<Group>& group) {
    auto part = SubGroup::split(group, {}, 0, 0).value();
    if (index_of(group->rank()) == 1) {
      part.reset();
    } else {
      const auto all = part->all_gather("nothing", {}, soon());
      ASSERT_FALSE(all.has_value());
      EXPECT_EQ(all.error().code(), StatusCode::kPeerLost) << all.error().to_string();
    }
    EXPECT_TRUE(group->control().all_gather("the end", {}, soon()).has_value());
  });
}

}  // namespace
}  // namespace stretto

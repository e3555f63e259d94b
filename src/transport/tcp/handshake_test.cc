// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/handshake.hpp"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::transport {
namespace {

using State = Handshake::State;

Identity identity(std::uint32_t rank, std::string token = "blue") {
  return {Rank{rank}, 4, 42, std::move(token)};
}

/// Moves at most `most` bytes from one to the other; says how many.
std::size_t carry(Handshake& from, Handshake& to, std::size_t most = 1) {
  const std::size_t bytes = std::min({most, from.output().size(), to.input().size()});
  std::copy_n(from.output().begin(), bytes, to.input().begin());
  from.sent(bytes);
  to.received(bytes);
  return bytes;
}

void talk(Handshake& a, Handshake& b) {
  while (carry(a, b) + carry(b, a) > 0) {
  }
}

void feed(Handshake& handshake, std::span<const std::byte> bytes) {
  while (!bytes.empty() && !handshake.input().empty()) {
    const std::size_t step = std::min(bytes.size(), handshake.input().size());
    std::copy_n(bytes.begin(), step, handshake.input().begin());
    handshake.received(step);
    bytes = bytes.subspan(step);
  }
}

std::vector<std::byte> take_output(Handshake& handshake) {
  const auto output = handshake.output();
  std::vector<std::byte> bytes(output.begin(), output.end());
  handshake.sent(bytes.size());
  return bytes;
}

TEST(Handshake, RanksOfOneJobComeToKnowEachOther) {
  const Identity low = identity(1);
  const Identity high = identity(3);
  Handshake connector = Handshake::connector(high, Rank{1}, 111);
  Handshake acceptor = Handshake::acceptor(low, 222);
  talk(connector, acceptor);
  EXPECT_EQ(connector.state(), State::kDone);
  EXPECT_EQ(acceptor.state(), State::kDone);
  EXPECT_EQ(acceptor.peer(), Rank{3});
}

struct Mismatch {
  Identity connector;
  Refusal expected;
};

TEST(Handshake, BothSidesLearnWhyTheyDoNotMatch) {
  const Identity low = identity(1);
  const std::vector<Mismatch> mismatches = {
      {identity(3, "red"), Refusal::kToken},
      {identity(3, ""), Refusal::kToken},
      {{Rank{3}, 4, 43, "blue"}, Refusal::kJob},
      {{Rank{3}, 5, 42, "blue"}, Refusal::kSize},
      {identity(0), Refusal::kRank},  // only ranks above connect
      {identity(1), Refusal::kRank},
      {identity(4), Refusal::kRank},
  };
  for (const Mismatch& mismatch : mismatches) {
    SCOPED_TRACE(std::string(to_string(mismatch.expected)));
    Handshake connector = Handshake::connector(mismatch.connector, Rank{1}, 111);
    Handshake acceptor = Handshake::acceptor(low, 222);
    talk(connector, acceptor);
    EXPECT_EQ(connector.state(), State::kRefused);
    EXPECT_EQ(acceptor.state(), State::kRefused);
    EXPECT_EQ(connector.refusal(), mismatch.expected);
    EXPECT_EQ(acceptor.refusal(), mismatch.expected);
    EXPECT_NE(connector.was_refused_by_peer(), acceptor.was_refused_by_peer());
  }
}

TEST(Handshake, AConnectorRefusesAnotherRankThanItWanted) {
  const Identity low = identity(1);
  const Identity high = identity(3);
  Handshake connector = Handshake::connector(high, Rank{0}, 111);
  Handshake acceptor = Handshake::acceptor(low, 222);
  talk(connector, acceptor);
  EXPECT_EQ(connector.refusal(), Refusal::kRank);
}

TEST(Handshake, AnotherVersionIsRefusedByName) {
  const Identity low = identity(1);
  const Identity high = identity(3);
  Handshake connector = Handshake::connector(high, Rank{1}, 111);
  auto hello = take_output(connector);
  hello[8] = std::byte{77};
  Handshake acceptor = Handshake::acceptor(low, 222);
  feed(acceptor, hello);
  EXPECT_EQ(acceptor.state(), State::kRefused);
  EXPECT_EQ(acceptor.refusal(), Refusal::kVersion);
}

TEST(Handshake, ARecordedProofOpensNothing) {
  const Identity low = identity(1);
  const Identity high = identity(3);
  Handshake connector = Handshake::connector(high, Rank{1}, 111);
  Handshake acceptor = Handshake::acceptor(low, 222);
  const auto hello = take_output(connector);
  feed(acceptor, hello);
  feed(connector, take_output(acceptor));
  const auto proof = take_output(connector);

  Handshake other = Handshake::acceptor(low, 333);
  feed(other, hello);
  feed(other, proof);
  EXPECT_EQ(other.state(), State::kRefused);
  EXPECT_EQ(other.refusal(), Refusal::kToken);
}

TEST(Handshake, TheTokenDoesNotTravelAndTheBytesAreGolden) {
  const Identity high = identity(3);
  Handshake connector = Handshake::connector(high, Rank{1}, 0x1122334455667788);
  const auto hello = take_output(connector);
  const std::vector<int> golden = {'S',  'T',  'R',  'E',  'T',  'T',  'O',  '1',  // magic
                                   2,    1,    0,    0,  // version, kind, refusal
                                   3,    0,    0,    0,    4,    0,    0,    0,
                                   0,    0,    0,    0,                             // rank, size
                                   42,   0,    0,    0,    0,    0,    0,    0,     // job
                                   0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  // nonce
                                   0,    0,    0,    0,    0,    0,    0,    0};    // proof
  ASSERT_EQ(hello.size(), golden.size());
  for (std::size_t i = 0; i < golden.size(); ++i) {
    EXPECT_EQ(static_cast<int>(hello[i]), golden[i]) << "byte " << i;
  }
}

TEST(Handshake, GarbageIsNeverLetIn) {
  const Identity low = identity(1);
  const Identity high = identity(3);
  std::mt19937_64 random(7);
  for (int i = 0; i < 20'000; ++i) {
    Handshake acceptor = Handshake::acceptor(low, random());
    Handshake connector = Handshake::connector(high, Rank{1}, random());
    std::vector<std::byte> bytes(random() % 200);
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random());
    }
    if (i % 2 == 0) {  // a true greeting, then rubbish where the proof should be
      feed(acceptor, take_output(connector));
      static_cast<void>(take_output(acceptor));
    }
    feed(acceptor, bytes);
    feed(connector, bytes);
    ASSERT_NE(acceptor.state(), State::kDone);
    ASSERT_NE(connector.state(), State::kDone);
  }
}

}  // namespace
}  // namespace stretto::transport

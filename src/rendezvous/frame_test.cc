// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/frame.hpp"

#include "rendezvous/words.hpp"

#include <gtest/gtest.h>

namespace stretto::rendezvous {
namespace {

spi::Bytes bytes_of(std::string_view text) {
  const auto span = std::as_bytes(std::span(text.data(), text.size()));
  return {span.begin(), span.end()};
}

TEST(FrameReader, FramesSurviveAnyCutting) {
  const auto first = encode(FrameKind::kLost, Notice{2, "rank 2 was lost"});
  const auto second = encode(GatherCall{7, "the plan", bytes_of("blob")});
  spi::Bytes stream(*first);
  stream.insert(stream.end(), second->begin(), second->end());
  for (std::size_t piece = 1; piece <= stream.size(); ++piece) {
    FrameReader reader(1024);
    std::vector<Frame> frames;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      reader.append(std::span(stream).subspan(at, std::min(piece, stream.size() - at)));
      while (auto frame = reader.next().value()) {
        frames.push_back(std::move(*frame));
      }
    }
    ASSERT_EQ(frames.size(), 2U) << piece;
    EXPECT_EQ(decode_notice(frames[0].body)->text, "rank 2 was lost");
    EXPECT_EQ(decode_gather_call(frames[1].body)->blob, bytes_of("blob"));
  }
}

TEST(FrameReader, RefusesEveryWrongHeader) {
  const auto good = encode(FrameKind::kBye);
  for (std::size_t at = 0; at < kFrameHeaderBytes; ++at) {
    spi::Bytes bad(*good);
    bad[at] ^= std::byte{0x80};
    FrameReader reader(1024);
    reader.append(bad);
    const auto frame = reader.next();
    // A changed low byte of the length (0x80 = 128) only makes the frame incomplete.
    EXPECT_TRUE(!frame.has_value() || (at == 8 && !frame->has_value())) << at;
  }
}

TEST(FrameReader, RefusesABodyLongerThanAllowed) {
  FrameReader reader(16);
  reader.append(*encode(FrameKind::kLost, Notice{0, "more than sixteen bytes"}));
  EXPECT_EQ(reader.next().error().code(), StatusCode::kCorruptWire);
}

TEST(Messages, TruncatedBodiesAreNothing) {
  const auto frame = encode(Hello{});
  const auto body = std::span<const std::byte>(*frame).subspan(kFrameHeaderBytes);
  EXPECT_TRUE(decode_hello(body).has_value());
  for (std::size_t length = 0; length < body.size(); ++length) {
    EXPECT_FALSE(decode_hello(body.first(length)).has_value()) << length;
  }
  const auto gathered = encode(3, {bytes_of("a"), bytes_of("bc")});
  const auto blobs = std::span<const std::byte>(*gathered).subspan(kFrameHeaderBytes);
  EXPECT_EQ(decode_gathered(blobs)->blobs[1], bytes_of("bc"));
  for (std::size_t length = 0; length < blobs.size(); ++length) {
    EXPECT_FALSE(decode_gathered(blobs.first(length)).has_value()) << length;
  }
}

TEST(Messages, TextOfPeersCannotActInATerminal) {
  const auto frame = encode(FrameKind::kAbort, Notice{1, "a\x1b[2Jb\nc"});
  EXPECT_EQ(decode_notice(std::span<const std::byte>(*frame).subspan(kFrameHeaderBytes))->text,
            "a [2Jb c");
}

TEST(Messages, ProofDependsOnEverything) {
  const Nonce zero{};
  Nonce other{};
  other[3] = std::byte{1};
  const auto proof = prove_token("t", Prover::kJoiner, zero, zero, 1, 2);
  EXPECT_EQ(proof, prove_token("t", Prover::kJoiner, zero, zero, 1, 2));
  EXPECT_NE(proof, prove_token("u", Prover::kJoiner, zero, zero, 1, 2));
  EXPECT_NE(proof, prove_token("t", Prover::kRankZero, zero, zero, 1, 2));
  EXPECT_NE(proof, prove_token("t", Prover::kJoiner, other, zero, 1, 2));
  EXPECT_NE(proof, prove_token("t", Prover::kJoiner, zero, other, 1, 2));
  EXPECT_NE(proof, prove_token("t", Prover::kJoiner, zero, zero, 0, 2));
  EXPECT_NE(proof, prove_token("t", Prover::kJoiner, zero, zero, 1, 3));
}

TEST(Words, RanksAreNamedAsPeopleDo) {
  EXPECT_EQ(name_ranks({2}), "rank 2");
  EXPECT_EQ(name_ranks({2, 3}), "ranks 2 and 3");
  EXPECT_EQ(name_ranks({1, 2, 5}), "ranks 1, 2 and 5");
  EXPECT_EQ(name_ranks({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
  EXPECT_EQ(name_duration(std::chrono::seconds(60)), "60 s");
  EXPECT_EQ(name_duration(std::chrono::milliseconds(250)), "250 ms");
}

}  // namespace
}  // namespace stretto::rendezvous

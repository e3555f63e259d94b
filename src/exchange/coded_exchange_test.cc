// SPDX-License-Identifier: Apache-2.0
// Coded chunks through OwnerExchange: what a peer sends that no honest one would ends in one error
// that says who, what and which parameter, and nothing of it arrives.
#include "codec/factory.hpp"
#include "device/cpu/factory.hpp"
#include "exchange/coding.hpp"
#include "exchange/factory.hpp"
#include "transport/inproc/inproc_transport.hpp"

#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::exchange {
namespace {

constexpr std::size_t kElements = 1000;
constexpr std::uint64_t kPlan = 7;

/// Rank 0 owns one coded chunk; rank 1 is whatever the test makes of it.
class CodedExchange : public ::testing::Test {
 protected:
  void SetUp() override {
    transports_ = transport::make_inproc_transports(2).value();
    device_ = device::make_cpu_device(0).value();
    codec_ = codec::make_codec("int8").value();
    segments_.push_back({{DType::kFloat32, kElements, 0, 3}, 0, "layer.weight"});
    owner_ = make_owner_exchange(*transports_[0], *device_, {}).value();
    ASSERT_TRUE(owner_->configure(std::array{chunk()}, kPlan, 1).is_ok());
  }
  void TearDown() override { transports_.clear(); }

  spi::ChunkDescription chunk() const {
    return {BucketId{0},
            DType::kFloat32,
            kElements,
            spi::Combine::kMean,
            codec_.get(),
            segments_,
            Rank{0}};
  }
  void submit() {
    spi::ChunkSubmission submission;
    submission.step = 1;
    submission.contribution = reinterpret_cast<const std::byte*>(gradient_.data());
    submission.result = reinterpret_cast<std::byte*>(result_.data());
    submission.memory.residual = memory_[0].data();
    submission.memory.left = memory_[1].data();
    submission.memory.owner_residual = memory_[2].data();
    submission.memory.owner_left = memory_[3].data();
    ASSERT_TRUE(owner_->submit(submission).is_ok());
  }
  spi::MessageHeader header() const {
    spi::MessageHeader header;
    header.step = 1;
    header.plan_hash = kPlan;
    header.samples = 1;
    header.element_count = kElements;
    header.payload_bytes = wire_.size();
    header.epoch = 1;
    header.codec = codec_->traits().id;
    return header;
  }
  /// What rank 0 makes of a message of rank 1: its error, or none.
  Status take(const spi::MessageHeader& header) {
    const Status sent = transports_[1]->announce(
        Rank{0}, header, std::span<const std::byte>(wire_).first(header.payload_bytes), 0);
    EXPECT_TRUE(sent.is_ok()) << sent.to_string();
    std::array<spi::ExchangeEvent, 4> events;
    std::array<spi::TransportEvent, 4> moved;
    for (int turn = 0; turn < 100; ++turn) {
      const auto came = owner_->poll(events);
      if (!came) {
        return came.error();
      }
      home_ += *came;
      static_cast<void>(transports_[1]->poll(moved));
    }
    return {};
  }
  static std::vector<float> values(float first) {
    std::vector<float> list(kElements);
    for (std::size_t i = 0; i < list.size(); ++i) {
      list[i] = first + 0.25F * static_cast<float>(i % 17);
    }
    return list;
  }
  std::vector<std::byte> honest_wire() const {
    std::vector<std::byte> wire(most_wire_bytes(chunk()));
    const auto mine = values(-2);
    EXPECT_TRUE(codec_->encode(segments_[0].segment, {}, std::as_bytes(std::span(mine)), {}, wire)
                    .has_value());
    return wire;
  }

  std::shared_ptr<const spi::Codec> codec_;
  std::vector<spi::CodedSegment> segments_;
  std::unique_ptr<spi::Device> device_;
  std::vector<float> gradient_ = values(1);
  std::vector<float> result_ = std::vector<float>(kElements, 99.0F);
  std::array<std::vector<float>, 4> memory_{std::vector<float>(kElements),
                                            std::vector<float>(kElements),
                                            std::vector<float>(kElements),
                                            std::vector<float>(kElements)};
  std::vector<std::byte> wire_;
  std::unique_ptr<spi::Exchange> owner_;
  std::vector<std::unique_ptr<spi::Transport>> transports_;  // end first
  std::size_t home_ = 0;
};

TEST_F(CodedExchange, AnHonestPartMakesAMean) {
  wire_ = honest_wire();
  submit();
  ASSERT_TRUE(take(header()).is_ok());
  EXPECT_GE(home_, 1U);
  EXPECT_NEAR(result_[3], (1.75F - 1.25F) / 2, 0.05F);
}

TEST_F(CodedExchange, AWireThatNoEncoderWritesNamesRankAndParameter) {
  wire_ = honest_wire();
  wire_[3] = std::byte{0xff};  // a scale that is no number
  submit();
  const Status error = take(header());
  EXPECT_EQ(error.code(), StatusCode::kCorruptWire);
  for (const char* part : {"layer.weight", "int8", "rank 1", "step 1"}) {
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
  }
  EXPECT_EQ(result_[0], 99.0F);
}

TEST_F(CodedExchange, AnotherCodecIsRefusedBeforeItsBytesMove) {
  wire_ = honest_wire();
  submit();
  spi::MessageHeader other = header();
  other.codec = 9;
  const Status error = take(other);
  EXPECT_EQ(error.code(), StatusCode::kCorruptWire);
  EXPECT_NE(error.message().find("in another codec than the plan"), std::string::npos)
      << error.message();
}

TEST_F(CodedExchange, AWireThatIsCutShortIsRefused) {
  wire_ = honest_wire();
  submit();
  spi::MessageHeader shorter = header();
  shorter.payload_bytes -= 1;
  EXPECT_EQ(take(shorter).code(), StatusCode::kCorruptWire);
}

TEST_F(CodedExchange, ARoundThatThereIsNotIsRefused) {
  wire_ = honest_wire();
  submit();
  spi::MessageHeader later = header();
  later.flags = 1;
  EXPECT_EQ(take(later).code(), StatusCode::kCorruptWire);
}

TEST_F(CodedExchange, AResultFromARankThatIsNotTheOwnerIsRefused) {
  wire_ = honest_wire();
  submit();
  spi::MessageHeader result = header();
  result.stage = spi::Stage::kResult;
  EXPECT_EQ(take(result).code(), StatusCode::kCorruptWire);
  EXPECT_EQ(result_[0], 99.0F);
}

TEST(CodedWork, TheLengthsOfAWireAreChecked) {
  const auto codec = codec::make_codec("topk:10%").value();
  std::vector<spi::CodedSegment> segments{{{DType::kFloat32, 100, 0, 1}, 0, "a"},
                                          {{DType::kFloat32, 50, 0, 2}, 112, "b"}};
  const spi::ChunkDescription chunk{
      BucketId{0}, DType::kFloat32, 162, spi::Combine::kMean, codec.get(), segments, Rank{0}};
  std::vector<float> gradient(162);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>(i % 13) - 6;
  }
  std::vector<float> result(162, 0.0F);
  std::vector<std::byte> wire(most_wire_bytes(chunk));
  CodedWork work;
  work.chunk = &chunk;
  work.contribution = reinterpret_cast<const std::byte*>(gradient.data());
  work.result = reinterpret_cast<std::byte*>(result.data());
  work.wire = wire;
  work.run();
  ASSERT_TRUE(work.status.is_ok()) << work.status.to_string();
  const std::size_t bytes = work.wire_bytes;
  work.kind = CodedWork::Kind::kDecode;
  work.total_samples = 1;
  work.wire = std::span(wire).first(bytes);
  work.run();
  EXPECT_TRUE(work.status.is_ok()) << work.status.to_string();
  for (const std::size_t cut : {std::size_t{0}, std::size_t{3}, std::size_t{8}, bytes - 1}) {
    work.wire = std::span(wire).first(cut);
    work.run();
    EXPECT_EQ(work.status.code(), StatusCode::kCorruptWire) << cut;
  }
  work.wire = std::span(wire).first(bytes);
  for (const std::size_t at : {0U, 1U, 3U, 4U, 7U}) {  // a length that leads out of the wire
    const std::byte before = wire[at];
    wire[at] = std::byte{0xee};
    work.run();
    EXPECT_EQ(work.status.code(), StatusCode::kCorruptWire) << at;
    EXPECT_NE(work.status.message().find("rank 0"), std::string::npos) << work.status.message();
    wire[at] = before;
  }
}

}  // namespace
}  // namespace stretto::exchange

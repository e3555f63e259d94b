// SPDX-License-Identifier: Apache-2.0
#include "transport/wire.hpp"

#include <random>

#include <gtest/gtest.h>

namespace stretto::transport {
namespace {

template <std::size_t N>
std::string hex(const std::array<std::byte, N>& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[static_cast<unsigned>(byte) >> 4];
    text += kDigits[static_cast<unsigned>(byte) & 15];
  }
  return text;
}

spi::MessageHeader every_field() {
  spi::MessageHeader header;
  header.step = 0x0102030405060708;
  header.plan_hash = 0x1112131415161718;
  header.samples = 32;
  header.element_count = 1000;
  header.payload_bytes = 2000;
  header.epoch = 3;
  header.bucket = 4;
  header.chunk = 5;
  header.shard = 6;
  header.priority = 7;
  header.stage = spi::Stage::kOneHop;
  header.dtype = DType::kBFloat16;
  header.codec = 8;
  header.flags = 9;
  return header;
}

// If one of these two fails, the wire has changed: raise kWireVersion, then the bytes here.
TEST(Wire, FrameHeadsHaveTheirGoldenBytes) {
  EXPECT_EQ(hex(encode(FrameHead{FrameType::kAnnounce, 64, 0x0102, 0})),
            "020100004000000002010000000000000000000000000000");
  EXPECT_EQ(hex(encode(FrameHead{FrameType::kGrant, 0, 7, 0x010000})),
            "020200000000000007000000000000000000010000000000");
  EXPECT_EQ(hex(encode(FrameHead{FrameType::kData, 0x8000, 7, 0x018000})),
            "020300000080000007000000000000000080010000000000");
  EXPECT_EQ(hex(encode(FrameHead{FrameType::kBye, 0, 0, 0})),
            "020400000000000000000000000000000000000000000000");
  EXPECT_EQ(hex(encode(FrameHead{FrameType::kCredit, 0, 0, 0x010000})),
            "020500000000000000000000000000000000010000000000");
}

TEST(Wire, MessageHeadersHaveTheirGoldenBytes) {
  EXPECT_EQ(hex(encode(every_field())),
            "0807060504030201"
            "1817161514131211"
            "2000000000000000"
            "e803000000000000"
            "d007000000000000"
            "0300000004000000"
            "0500000006000000"
            "07000000"
            "02020809");
}

TEST(Wire, ReadsBackWhatWasWritten) {
  EXPECT_EQ(decode_message_header(encode(every_field())).value(), every_field());
  const FrameHead head{FrameType::kData, 100, 1, 200};
  EXPECT_EQ(decode_frame_head(encode(head)).value(), head);
}

TEST(Wire, RefusesHeadsThatDoNotFitTheirType) {
  const auto refused = [](const FrameHead& head) {
    const auto decoded = decode_frame_head(encode(head));
    return !decoded && decoded.error().code() == StatusCode::kCorruptWire;
  };
  EXPECT_TRUE(refused({static_cast<FrameType>(0), 0, 0, 0}));
  EXPECT_TRUE(refused({static_cast<FrameType>(5), 0, 0, 0}));
  EXPECT_TRUE(refused({FrameType::kAnnounce, 63, 1, 0}));
  EXPECT_TRUE(refused({FrameType::kAnnounce, 64, 0, 0}));
  EXPECT_TRUE(refused({FrameType::kGrant, 0, 1, 0}));
  EXPECT_TRUE(refused({FrameType::kGrant, 1, 1, 1}));
  EXPECT_TRUE(refused({FrameType::kGrant, 0, 1, kMaxPayloadBytes + 1}));
  EXPECT_TRUE(refused({FrameType::kData, 0, 1, 0}));
  EXPECT_TRUE(refused({FrameType::kData, kMaxFragmentBytes + 1, 1, 0}));
  EXPECT_TRUE(refused({FrameType::kBye, 0, 1, 0}));
}

TEST(Wire, RefusesAnotherVersionByName) {
  FrameHeadBytes bytes = encode(FrameHead{FrameType::kBye, 0, 0, 0});
  bytes[0] = std::byte{99};
  EXPECT_EQ(decode_frame_head(bytes).error().message(), "a frame of wire version 99");
}

TEST(Wire, RefusesAbsurdMessageHeaders) {
  MessageHeaderBytes bytes = encode(every_field());
  bytes[60] = std::byte{6};
  EXPECT_EQ(decode_message_header(bytes).error().code(), StatusCode::kCorruptWire);
  bytes = encode(every_field());
  bytes[61] = std::byte{3};
  EXPECT_EQ(decode_message_header(bytes).error().code(), StatusCode::kCorruptWire);
  spi::MessageHeader header = every_field();
  header.payload_bytes = kMaxPayloadBytes + 1;
  EXPECT_EQ(decode_message_header(encode(header)).error().code(), StatusCode::kCorruptWire);
}

TEST(Wire, GarbageIsRefusedOrReadsBackAsItself) {
  std::mt19937_64 random(20240607);
  for (int i = 0; i < 100'000; ++i) {
    FrameHeadBytes bytes;
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random());
    }
    if (i % 2 == 0) {  // else hardly any gets past the first check
      bytes[0] = std::byte{kWireVersion};
      bytes[1] = static_cast<std::byte>(random() % 6);
      bytes[2] = bytes[3] = std::byte{0};
    }
    if (const auto head = decode_frame_head(bytes)) {
      ASSERT_EQ(encode(*head), bytes);
    }
  }
}

}  // namespace
}  // namespace stretto::transport

// SPDX-License-Identifier: Apache-2.0
#include "base/byte_order.hpp"

#include <gtest/gtest.h>

namespace stretto {
namespace {

TEST(ByteOrder, ReadsBackWhatWasWritten) {
  ByteWriter writer;
  writer.put(std::uint32_t{0x01020304});
  writer.put_text("layer4.conv2.weight");
  writer.put(2.5);
  ByteReader reader(writer.bytes());
  EXPECT_EQ(reader.get<std::uint32_t>(), 0x01020304U);
  EXPECT_EQ(reader.get_text(), "layer4.conv2.weight");
  EXPECT_EQ(reader.get<double>(), 2.5);
  EXPECT_TRUE(reader.ok());
  EXPECT_TRUE(reader.at_end());
}

TEST(ByteOrder, WritesLittleEndian) {
  ByteWriter writer;
  writer.put(std::uint32_t{0x01020304});
  EXPECT_EQ(writer.bytes()[0], std::byte{4});
  EXPECT_EQ(writer.bytes()[3], std::byte{1});
}

TEST(ByteOrder, ShortInputIsNotOkAndReadsAsZero) {
  ByteWriter writer;
  writer.put(std::uint32_t{1000});  // a length that is not there
  ByteReader reader(writer.bytes());
  EXPECT_EQ(reader.get_text(), "");
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.get<std::uint64_t>(), 0U);
}

}  // namespace
}  // namespace stretto

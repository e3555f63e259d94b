// SPDX-License-Identifier: Apache-2.0
#include "codec/factory.hpp"
#include "kernels/arithmetic.hpp"

#include "stretto/spi/conformance/codec_conformance.hpp"

namespace stretto::spi {
namespace {

INSTANTIATE_TEST_SUITE_P(Plain,
                         CodecConformance,
                         testing::Values(CodecFactory{"plain", codec::make_plain_codec}),
                         codec_factory_name);

// 16 bits cannot hold a small residual on a large value; it must not be lost, but wait.
TEST(PlainCodec, AHalfSegmentKeepsInTheResidualWhatItsDtypeCannotSay) {
  const auto codec =
      codec::make_plain_codec({.dtype = DType::kFloat16, .element_count = 1}).value();
  const std::uint16_t large = kernels::float_to_half(1024.0F);
  std::vector<std::byte> wire(2);
  std::vector<float> residual{0.3F};
  for (int step = 1; step <= 4; ++step) {
    ASSERT_TRUE(codec->encode(0, std::as_bytes(std::span(&large, 1)), residual, wire).has_value());
    ASSERT_TRUE(codec->absorb(0, 1, wire).is_ok());
    std::uint16_t sent = 0;
    ASSERT_TRUE(codec->decode(0, 1, std::as_writable_bytes(std::span(&sent, 1))).is_ok());
    EXPECT_EQ(kernels::half_to_float(sent), 1024.0F);
    EXPECT_NEAR(residual[0], 0.3F, 1e-4F);
  }
  residual[0] = 0.7F;  // nearer to the next half, 1025
  ASSERT_TRUE(codec->encode(0, std::as_bytes(std::span(&large, 1)), residual, wire).has_value());
  EXPECT_NEAR(residual[0], -0.3F, 1e-4F);
}

}  // namespace
}  // namespace stretto::spi

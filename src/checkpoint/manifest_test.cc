// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/manifest.hpp"

#include <gtest/gtest.h>

namespace stretto::checkpoint {
namespace {

TEST(Manifest, ComesBackAsItWasPutBesideOtherTexts) {
  const Manifest manifest{.step = 1234, .world_size = 4, .plan_hash = ~std::uint64_t{0}};
  Metadata metadata{{"model", "cnn"}};
  put_manifest(manifest, metadata);
  EXPECT_EQ(metadata["model"], "cnn");
  const auto read = manifest_of(metadata, "f");
  ASSERT_TRUE(read.has_value()) << read.error().to_string();
  EXPECT_EQ(*read, manifest);
}

TEST(Manifest, NamesWhatIsMissingOrWrong) {
  Metadata metadata;
  put_manifest({}, metadata);
  for (const auto& [key, value] : metadata) {
    for (const std::string bad : {"", "-1", "1.5", "x", "18446744073709551616", "1 "}) {
      Metadata changed = metadata;
      changed[key] = bad;
      const auto read = manifest_of(changed, "f");
      ASSERT_FALSE(read.has_value()) << key << "='" << bad << "'";
      EXPECT_EQ(read.error().code(), StatusCode::kInvalidArgument);
    }
    Metadata less = metadata;
    less.erase(key);
    const auto read = manifest_of(less, "f");
    ASSERT_FALSE(read.has_value());
    EXPECT_NE(read.error().message().find(key), std::string_view::npos);
  }
}

TEST(Manifest, RefusesAnotherVersion) {
  Metadata metadata;
  put_manifest({}, metadata);
  metadata["stretto.version"] = "2";
  const auto read = manifest_of(metadata, "f");
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().message(), "'f' is a checkpoint of version 2; this build reads version 1");
}

}  // namespace
}  // namespace stretto::checkpoint

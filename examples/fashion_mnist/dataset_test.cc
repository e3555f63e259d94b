// SPDX-License-Identifier: Apache-2.0
#include "dataset.hpp"

#include "checkpoint/test_folder.hpp"

#include <string>

#include <gtest/gtest.h>
#include <zlib.h>

namespace fashion_mnist {
namespace {

using stretto::StatusCode;
using stretto::checkpoint::TestFolder;

std::string number(std::uint32_t value) {
  std::string text;
  for (int shift = 24; shift >= 0; shift -= 8) {
    text += static_cast<char>(value >> shift);
  }
  return text;
}

std::string images(std::uint32_t count, std::size_t bytes) {
  return number(0x803) + number(count) + number(28) + number(28) + std::string(bytes, '\x07');
}

/// Two files with this content, zipped; what loading them says.
stretto::Result<Pictures> loaded(const std::string& image_bytes, const std::string& label_bytes) {
  const TestFolder folder;
  const auto zip = [&](const std::string& name, const std::string& bytes) {
    gzFile file = gzopen(folder.path(name).c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
  };
  zip("i", image_bytes);
  zip("l", label_bytes);
  return load_pictures(folder.path("i"), folder.path("l"));
}

TEST(Dataset, ReadsPicturesAndLabels) {
  const auto pictures =
      loaded(images(2, 2 * kPixels), number(0x801) + number(2) + std::string("\x03\x09"));
  ASSERT_TRUE(pictures.has_value()) << pictures.error().to_string();
  EXPECT_EQ(pictures->count(), 2U);
  EXPECT_EQ(pictures->pixels[kPixels], 7);
  EXPECT_EQ(pictures->labels[1], 9);
}

TEST(Dataset, RefusesWhatIsNot) {
  const std::string good_images = images(1, kPixels);
  const std::string good_labels = number(0x801) + number(1) + std::string("\x03");
  ASSERT_TRUE(loaded(good_images, good_labels).has_value());
  EXPECT_FALSE(loaded(good_images.substr(0, 7), good_labels).has_value());
  EXPECT_FALSE(loaded(good_images.substr(0, 100), good_labels).has_value());
  EXPECT_FALSE(loaded(good_images + "x", good_labels).has_value());
  EXPECT_FALSE(loaded(good_labels, good_labels).has_value());
  EXPECT_FALSE(loaded(images(0xffffffff, kPixels), good_labels).has_value());
  EXPECT_FALSE(loaded(good_images, number(0x801) + number(1) + std::string("\x0a")).has_value());
  EXPECT_FALSE(
      loaded(good_images, number(0x801) + number(2) + std::string("\x01\x02")).has_value());
}

TEST(Dataset, SaysWhatToInstallIfItIsNotThere) {
  const auto missing = load("/no/such/folder");
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code(), StatusCode::kUnavailable);
  EXPECT_NE(missing.error().message().find("dataset-fashion-mnist"), std::string_view::npos);
}

}  // namespace
}  // namespace fashion_mnist

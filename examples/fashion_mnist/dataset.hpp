// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fashion_mnist {

inline constexpr std::size_t kSide = 28;
inline constexpr std::size_t kPixels = kSide * kSide;
inline constexpr std::size_t kClasses = 10;

/// Grey pictures of clothes, row by row, and what they show.
struct Pictures {
  std::vector<std::uint8_t> pixels;  ///< [count, 28, 28]
  std::vector<std::uint8_t> labels;  ///< [count], each below 10

  std::size_t count() const noexcept { return labels.size(); }
};

struct Dataset {
  Pictures train;
  Pictures test;
};

/// Reads the four gzipped IDX files of a folder.
///
/// Errors: kUnavailable names the Debian package if they are not there; kInvalidArgument says what
///         is wrong with a file.
stretto::Result<Dataset> load(const std::string& folder);

/// Reads one pair of files; safe on any content.
stretto::Result<Pictures> load_pictures(const std::string& image_path,
                                        const std::string& label_path);

}  // namespace fashion_mnist

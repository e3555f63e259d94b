// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fashion_mnist {

/// A text as numbers of its characters; the last tenth is for judging.
struct Text {
  std::vector<std::uint8_t> characters;  ///< [count], each below `alphabet`
  std::size_t alphabet = 0;              ///< different bytes that the text has
  std::size_t train_count = 0;           ///< characters before those that judge

  std::span<const std::uint8_t> train() const { return std::span(characters).first(train_count); }
  std::span<const std::uint8_t> test() const { return std::span(characters).subspan(train_count); }
};

/// Reads a file of plain text; any byte may be a character.
///
/// Errors: kUnavailable says how to come to the text if it is not there; kInvalidArgument for one
/// of
///         less than `least` characters.
stretto::Result<Text> load_text(const std::string& path, std::size_t least);

/// Where in `length` characters a window of `window` begins; a function of seed, step, rank and
/// number alone.
std::size_t window_start(std::uint64_t seed,
                         std::uint64_t step,
                         std::uint64_t rank,
                         std::uint64_t number,
                         std::size_t length,
                         std::size_t window);

}  // namespace fashion_mnist

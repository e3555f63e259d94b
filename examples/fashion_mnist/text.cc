// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include "random.hpp"

#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>

namespace fashion_mnist {

using stretto::fail;
using stretto::Result;
using stretto::StatusCode;

Result<Text> load_text(const std::string& path, std::size_t least) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return fail(StatusCode::kUnavailable,
                "cannot read '" + path + "': " + std::generic_category().message(errno) +
                    "; say --data FILE, a plain text: bench/rig/plain_text.py FILE writes that of "
                    "Debian's package bible-kjv-text");
  }
  Text text;
  text.characters.assign(std::istreambuf_iterator<char>(file), {});
  text.train_count = text.characters.size() / 10 * 9;
  if (text.characters.size() - text.train_count < least) {
    return fail(StatusCode::kInvalidArgument,
                "'" + path + "' has " + std::to_string(text.characters.size()) +
                    " characters; a tenth of them must be " + std::to_string(least));
  }
  // Numbers in the order of the bytes, for those that occur.
  std::array<bool, 256> occurs{};
  for (const std::uint8_t character : text.characters) {
    occurs[character] = true;
  }
  std::array<std::uint8_t, 256> number{};
  for (std::size_t byte = 0; byte < occurs.size(); ++byte) {
    number[byte] = static_cast<std::uint8_t>(text.alphabet);
    text.alphabet += occurs[byte] ? 1 : 0;
  }
  for (std::uint8_t& character : text.characters) {
    character = number[character];
  }
  return text;
}

std::size_t window_start(std::uint64_t seed,
                         std::uint64_t step,
                         std::uint64_t rank,
                         std::uint64_t number,
                         std::size_t length,
                         std::size_t window) {
  std::uint64_t state = seed;
  for (const std::uint64_t part : {step, rank, number}) {
    state = Random(state).next() ^ part;
  }
  return static_cast<std::size_t>(Random(state).below(length - window + 1));
}

}  // namespace fashion_mnist

// SPDX-License-Identifier: Apache-2.0
// A fuzz target as a unit test, so that every build compiles it and every check runs it: on its
// examples, on what is one cut or one byte away from them, and on noise.  What it looks for is what
// the target itself aborts on, and what the sanitizers see.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include <gtest/gtest.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;

constexpr std::size_t kNeighbours = 200;  // of each example: the whole test stays under a second

void feed(const Input& input) {
  // A copy of the very size, so that a sanitizer sees a read beyond the end.
  const Input exact(input);
  ASSERT_EQ(LLVMFuzzerTestOneInput(exact.data(), exact.size()), 0);
}

std::vector<Input> examples() {
  std::vector<Input> found;
  const std::filesystem::path folder(STRETTO_FUZZ_EXAMPLES);
  if (!std::filesystem::exists(folder)) {
    return found;
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    found.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return found;
}

TEST(NearExamples, Examples) {
  // Without one, nothing near a valid input would ever be tried.
  ASSERT_FALSE(examples().empty()) << "there is no example in " << STRETTO_FUZZ_EXAMPLES;
  for (const Input& example : examples()) {
    feed(example);
  }
}

TEST(NearExamples, CutShort) {
  for (const Input& example : examples()) {
    const std::size_t stride = std::max<std::size_t>(1, example.size() / kNeighbours);
    for (std::size_t size = 0; size < example.size(); size += stride) {
      feed(Input(example.begin(), example.begin() + static_cast<std::ptrdiff_t>(size)));
    }
  }
}

TEST(NearExamples, OneByteChanged) {
  std::mt19937 random(1);
  for (const Input& example : examples()) {
    for (std::size_t i = 0; i < kNeighbours && !example.empty(); ++i) {
      Input changed = example;
      changed[random() % changed.size()] = static_cast<std::uint8_t>(random());
      feed(changed);
    }
  }
}

TEST(NearExamples, Noise) {
  std::mt19937 random(2);
  for (std::size_t i = 0; i < kNeighbours; ++i) {
    Input noise(random() % 600);
    std::ranges::generate(noise, [&] { return static_cast<std::uint8_t>(random()); });
    feed(noise);
  }
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.hpp"

#include "checkpoint/test_folder.hpp"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::checkpoint {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// A file with this header and so many bytes of data, as text.
std::string file_with(const std::string& header, std::size_t data_bytes = 0) {
  std::string length;
  for (int shift = 0; shift < 64; shift += 8) {
    length += static_cast<char>(std::uint64_t{header.size()} >> shift);
  }
  return length + header + std::string(data_bytes, '\1');
}

std::string error_of(const std::string& file) {
  const auto parsed = parse_header(bytes_of(file), file.size(), "f");
  if (parsed.has_value()) {
    return "accepted";
  }
  EXPECT_EQ(parsed.error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(parsed.error().message().find('\n'), std::string_view::npos);
  return std::string(parsed.error().message());
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Safetensors, ComesBackBitByBit) {
  const TestFolder folder;
  const std::vector<float> weights{1.5F, -0.0F, 3e-42F, 1e30F, 5.0F, 6.0F};
  const std::vector<std::int64_t> counter{-7};
  const std::vector<std::uint16_t> halves{0x3c00, 0xffff, 0x0001};
  const std::vector<TensorToWrite> tensors{
      {"fc.weight", ElementType::kF32, {2, 3}, std::as_bytes(std::span(weights))},
      {"bn.num_batches", ElementType::kI64, {}, std::as_bytes(std::span(counter))},
      {"empty", ElementType::kF64, {0, 5}, {}},
      {"half", ElementType::kBF16, {3}, std::as_bytes(std::span(halves))}};
  const Metadata metadata{{"model", "cnn"}, {"text", "line\n\"quoted\" \xc3\xa4"}};
  ASSERT_TRUE(write_safetensors(folder.path("f"), tensors, metadata).is_ok());

  const auto file = SafetensorsFile::open(folder.path("f"));
  ASSERT_TRUE(file.has_value()) << file.error().to_string();
  EXPECT_EQ(file->header().metadata, metadata);
  EXPECT_EQ(file->header().tensors.size(), tensors.size());
  EXPECT_EQ(file->header().data_begin % 64, 0U);
  for (const auto& tensor : tensors) {
    const auto entry = file->find(tensor.name, tensor.type, tensor.shape);
    ASSERT_TRUE(entry.has_value()) << entry.error().to_string();
    std::vector<std::byte> read(tensor.bytes.size());
    ASSERT_TRUE(file->read(*entry, read).is_ok());
    EXPECT_TRUE(std::equal(read.begin(), read.end(), tensor.bytes.begin())) << tensor.name;
  }
}

TEST(Safetensors, WritesTheDocumentedBytes) {
  const TestFolder folder;
  const std::vector<std::uint8_t> one{42};
  const std::vector<TensorToWrite> tensors{
      {"a", ElementType::kU8, {1}, std::as_bytes(std::span(one))}};
  ASSERT_TRUE(write_safetensors(folder.path("f"), tensors, {}).is_ok());
  std::string header = R"({"a":{"data_offsets":[0,1],"dtype":"U8","shape":[1]}})";
  header.resize(64 - 8, ' ');
  std::string expected = file_with(header);
  expected += '\x2a';
  EXPECT_EQ(folder.read("f"), expected);
}

TEST(Safetensors, SaysWhatAnotherModelHas) {
  const TestFolder folder;
  const std::vector<float> value{1};
  const std::vector<TensorToWrite> tensors{
      {"w", ElementType::kF32, {1}, std::as_bytes(std::span(value))}};
  ASSERT_TRUE(write_safetensors(folder.path("f"), tensors, {}).is_ok());
  const auto file = SafetensorsFile::open(folder.path("f"));
  ASSERT_TRUE(file.has_value());
  const std::string name = "'" + folder.path("f") + "'";
  EXPECT_EQ(file->find("w", ElementType::kF16, {1}).error().message(),
            name +
                " has tensor 'w' as F32 [1], but F16 [1] is needed: the checkpoint is of another "
                "model");
  EXPECT_FALSE(file->find("w", ElementType::kF32, {1, 1}).has_value());
  EXPECT_EQ(file->find("v", ElementType::kF32, {1}).error().message(),
            name + " has no tensor 'v': the checkpoint is of another model");
}

TEST(Safetensors, RefusesToWriteNonsense) {
  const TestFolder folder;
  const std::vector<float> value{1};
  const auto bytes = std::as_bytes(std::span(value));
  const std::vector<TensorToWrite> twice{{"w", ElementType::kF32, {1}, bytes},
                                         {"w", ElementType::kF32, {1}, bytes}};
  const std::vector<TensorToWrite> size{{"w", ElementType::kF32, {2}, bytes}};
  const std::vector<TensorToWrite> latin{{"\xe4", ElementType::kF32, {1}, bytes}};
  for (const auto* tensors : {&twice, &size, &latin}) {
    const Status status = write_safetensors(folder.path("f"), *tensors, {});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
  }
  EXPECT_EQ(folder.file_count(), 0U);
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const TestFolder folder;
  const std::vector<float> value{1, 2, 3};
  const std::vector<TensorToWrite> tensors{
      {"weight", ElementType::kF32, {3}, std::as_bytes(std::span(value))}};
  ASSERT_TRUE(write_safetensors(folder.path("f"), tensors, {{"k", "v"}}).is_ok());
  const std::string whole = folder.read("f");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(error_of(whole.substr(0, length)), "accepted") << length;
    folder.write("g", whole.substr(0, length));
    EXPECT_FALSE(SafetensorsFile::open(folder.path("g")).has_value()) << length;
  }
  EXPECT_EQ(error_of(whole), "accepted");
}

TEST(Safetensors, RefusesWrongHeadersByName) {
  const auto tensor = [](const std::string& fields) { return "{\"t\":{" + fields + "}}"; };
  struct Case {
    std::string header;
    std::size_t data_bytes;
    std::string says;
  };
  const std::vector<Case> cases{
      {"", 0, "not a JSON object"},
      {"[]", 0, "not a JSON object"},
      {"{}x", 0, "not a JSON object"},
      {"{\"a\":{\"b\":{\"c\":{\"d\":{\"e\":1}}}}}", 0, "not a JSON object"},
      {std::string(100'000, '['), 0, "not a JSON object"},
      {"{\"t\":1}", 0, "'t' lacks"},
      {tensor(R"("dtype":"F31","shape":[],"data_offsets":[0,4])"), 4, "unknown dtype 'F31'"},
      {tensor(R"("dtype":3,"shape":[],"data_offsets":[0,4])"), 4, "not a string"},
      {tensor(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4, "whole number"},
      {tensor(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4, "whole number"},
      {tensor(R"("dtype":"F32","shape":{},"data_offsets":[0,4])"), 4, "valid shape"},
      {tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), 4, "valid data_offsets"},
      {tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4, "lies at 4 to 0"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 4, "truncated?"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4, "not what its shape"},
      {tensor(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0])"),
       0,
       "not what its shape"},
      {tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 5, "1 bytes at its end"},
      {tensor(R"("dtype":"F32","shape":[1],"data_offsets":[1,5])"), 5, "gap before"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3,
       "'b' overlaps"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1,
       "twice"},
      {R"({"__metadata__":[]})", 0, "metadata is not"},
      {R"({"__metadata__":{"k":1}})", 0, "metadata 'k' is not a string"},
  };
  for (const auto& wrong : cases) {
    const auto error = error_of(file_with(wrong.header, wrong.data_bytes));
    EXPECT_TRUE(mentions(error, wrong.says)) << wrong.header.substr(0, 80) << "\n" << error;
  }
  std::string absurd(16, '\xff');
  EXPECT_TRUE(mentions(error_of(absurd), "claims 18446744073709551615 bytes"));
}

TEST(Safetensors, ChangedBytesNeverCrash) {
  const std::string good = file_with(
      R"({"__metadata__":{"a":"b"},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2);
  ASSERT_EQ(error_of(good), "accepted");
  std::mt19937 random(1);
  for (int round = 0; round < 5'000; ++round) {
    std::string file = good;
    for (int change = 0; change < 1 + round % 4; ++change) {
      file[random() % file.size()] = static_cast<char>(random());
    }
    static_cast<void>(parse_header(bytes_of(file), file.size(), "f"));
  }
}

}  // namespace
}  // namespace stretto::checkpoint

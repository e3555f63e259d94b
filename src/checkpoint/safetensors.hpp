// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"

#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stretto::checkpoint {

using stretto::size_of;  // the functions of other types stay visible beside those of this module
using stretto::to_string;

/// The element types of the format that we read and write.
enum class ElementType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kI32,
  kI64,
  kF16,
  kBF16,
  kF32,
  kF64
};

/// "F32" and so on, as the header spells it.
std::string_view to_string(ElementType type) noexcept;
std::size_t size_of(ElementType type) noexcept;

/// Free strings that travel with the tensors.
using Metadata = std::map<std::string, std::string>;

/// A tensor to be written.
///
/// Ownership: `bytes` stays unchanged during write_safetensors.
struct TensorToWrite {
  std::string name;
  ElementType type = ElementType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;
};

/// Writes a safetensors file: 8 bytes little-endian length, a JSON header, the tensors one after
/// another.  The file appears whole or not at all.
///
/// Errors: kInvalidArgument for a name that is used twice or is not UTF-8, or a size that is not
///         the shape's; kUnavailable (the disk is full, the folder is missing): the old file
///         stands.
Status write_safetensors(const std::string& path,
                         std::span<const TensorToWrite> tensors,
                         const Metadata& metadata);

/// A tensor of a file that was opened.
struct TensorEntry {
  std::string name;
  ElementType type = ElementType::kF32;
  Shape shape;
  std::uint64_t begin = 0;  ///< from the end of the header
  std::uint64_t end = 0;
};

/// All that the front of a file says, checked: types known, sizes right, every byte of the data
/// belongs to exactly one tensor.
struct Header {
  std::uint64_t data_begin = 0;  ///< from the start of the file
  std::vector<TensorEntry> tensors;
  Metadata metadata;
};

/// Headers longer than this are taken for garbage.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

/// Reads the front of a file of `file_bytes` bytes; `front` holds at least its length field and
/// header.  Safe on any input.
///
/// Errors: kInvalidArgument with one line that says what is wrong, and where `path` is.
Result<Header> parse_header(std::span<const std::byte> front,
                            std::uint64_t file_bytes,
                            const std::string& path);

/// A safetensors file, opened for reading; tensors are read when asked for.
///
/// Threading: thread-compatible.
class SafetensorsFile {
 public:
  /// Errors: kUnavailable if it cannot be read; kInvalidArgument if it is not what it should be.
  static Result<SafetensorsFile> open(const std::string& path);

  const Header& header() const noexcept { return header_; }
  const std::string& path() const noexcept { return path_; }

  /// The entry of this name, type and shape.
  ///
  /// Errors: kInvalidArgument names the tensor, what the file has and what was expected.
  Result<TensorEntry> find(const std::string& name, ElementType type, const Shape& shape) const;
  /// Copies a tensor's bytes; `into` has exactly its size.
  Status read(const TensorEntry& entry, std::span<std::byte> into) const;

 private:
  SafetensorsFile(std::string path, FileDescriptor descriptor, Header header);

  std::string path_;
  FileDescriptor descriptor_;
  Header header_;
};

}  // namespace stretto::checkpoint

// SPDX-License-Identifier: Apache-2.0
// The format: https://github.com/huggingface/safetensors, "Format".  We write the tensors in the
// order given and pad the header with spaces so that the data starts at a multiple of 64 bytes.
#include "checkpoint/safetensors.hpp"

#include "base/byte_order.hpp"
#include "checkpoint/atomic_file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

namespace stretto::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kDataAlignment = 64;
constexpr const char* kMetadataKey = "__metadata__";

struct TypeRow {
  std::string_view name;
  std::size_t bytes;
};
// In the order of ElementType.
constexpr std::array<TypeRow, 10> kTypes{{{"BOOL", 1},
                                          {"U8", 1},
                                          {"I8", 1},
                                          {"I16", 2},
                                          {"I32", 4},
                                          {"I64", 8},
                                          {"F16", 2},
                                          {"BF16", 2},
                                          {"F32", 4},
                                          {"F64", 8}}};

std::optional<ElementType> type_named(std::string_view name) {
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i].name == name) {
      return static_cast<ElementType>(i);
    }
  }
  return std::nullopt;
}

Status broken(const std::string& path, const std::string& what) {
  return {StatusCode::kInvalidArgument, "'" + path + "' is not a usable safetensors file: " + what};
}

/// Bytes of a tensor, or nothing if that does not fit 64 bits or a length is negative.
std::optional<std::uint64_t> bytes_of(const Shape& shape, ElementType type) {
  std::uint64_t bytes = size_of(type);
  for (const auto length : shape) {
    if (length < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(length), &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

/// Shows a name from a file in an error: shortened, without control characters.
std::string shown(const std::string& name) {
  std::string text = name.substr(0, 80);
  for (auto& letter : text) {
    if (static_cast<unsigned char>(letter) < 0x20) {
      letter = '?';
    }
  }
  return "'" + text + (name.size() > 80 ? "...'" : "'");
}

Result<TensorEntry> parse_tensor(const std::string& name,
                                 const Json& value,
                                 std::uint64_t data_bytes,
                                 const std::string& path) {
  const auto wrong = [&](const std::string& what) {
    return fail(broken(path, "tensor " + shown(name) + " " + what));
  };
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    return wrong("lacks dtype, shape or data_offsets");
  }
  const auto& dtype = value["dtype"];
  if (!dtype.is_string()) {
    return wrong("has a dtype that is not a string");
  }
  const auto type = type_named(dtype.get_ref<const std::string&>());
  if (!type) {
    return wrong("has the unknown dtype " + shown(dtype.get_ref<const std::string&>()));
  }
  TensorEntry entry{.name = name, .type = *type, .shape = {}};
  const auto& shape = value["shape"];
  if (!shape.is_array() || shape.size() > 64) {
    return wrong("has no valid shape");
  }
  for (const auto& length : shape) {
    if (!length.is_number_unsigned() ||
        length.get<std::uint64_t>() >
            static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return wrong("has a length in its shape that is not a whole number");
    }
    entry.shape.push_back(static_cast<std::int64_t>(length.get<std::uint64_t>()));
  }
  const auto& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return wrong("has no valid data_offsets");
  }
  entry.begin = offsets[0].get<std::uint64_t>();
  entry.end = offsets[1].get<std::uint64_t>();
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return wrong("lies at " + std::to_string(entry.begin) + " to " + std::to_string(entry.end) +
                 " of " + std::to_string(data_bytes) + " bytes of data (truncated?)");
  }
  if (bytes_of(entry.shape, entry.type) != entry.end - entry.begin) {
    return wrong("has " + std::to_string(entry.end - entry.begin) +
                 " bytes, which is not what its shape " + to_string(entry.shape) + " of " +
                 std::string(to_string(entry.type)) + " needs");
  }
  return entry;
}

/// Every byte of the data belongs to one tensor: no overlap, no gap, nothing left.
Status check_cover(std::vector<TensorEntry>& tensors,
                   std::uint64_t data_bytes,
                   const std::string& path) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t at = 0;
  for (const auto& tensor : tensors) {
    if (tensor.begin < at) {
      return broken(path, "tensor " + shown(tensor.name) + " overlaps the one before it");
    }
    if (tensor.begin > at) {
      return broken(path, "there is a gap before tensor " + shown(tensor.name));
    }
    at = tensor.end;
  }
  if (at != data_bytes) {
    return broken(path, std::to_string(data_bytes - at) + " bytes at its end belong to no tensor");
  }
  return Status::ok();
}

/// The parsed header, without duplicate names.
Result<Json> parse_json(std::span<const std::byte> text, const std::string& path) {
  std::set<std::string> names;
  bool duplicate = false;
  bool too_deep = false;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::key && depth == 1) {
      duplicate = !names.insert(value.get<std::string>()).second || duplicate;
    }
    too_deep = too_deep || depth > 4;
    return depth <= 4;
  };
  const auto* begin = reinterpret_cast<const char*>(text.data());
  Json json = Json::parse(begin, begin + text.size(), watch, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object() || too_deep) {
    return fail(broken(path, "its header is not a JSON object of tensors"));
  }
  if (duplicate) {
    return fail(broken(path, "its header names a tensor twice"));
  }
  return json;
}

Result<std::string> make_header(std::span<const TensorToWrite> tensors, const Metadata& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) {
    header[kMetadataKey] = metadata;
  }
  std::uint64_t at = 0;
  for (const auto& tensor : tensors) {
    if (tensor.name == kMetadataKey || header.contains(tensor.name)) {
      return fail(StatusCode::kInvalidArgument,
                  "two tensors of a checkpoint are named " + shown(tensor.name));
    }
    if (bytes_of(tensor.shape, tensor.type) != tensor.bytes.size()) {
      return fail(StatusCode::kInvalidArgument,
                  "tensor " + shown(tensor.name) + " of shape " + to_string(tensor.shape) +
                      " comes with " + std::to_string(tensor.bytes.size()) + " bytes");
    }
    header[tensor.name] = {{"dtype", to_string(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, at + tensor.bytes.size()}}};
    at += tensor.bytes.size();
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception&) {
    return fail(StatusCode::kInvalidArgument, "a name or text of a checkpoint is not UTF-8");
  }
  text.append((kDataAlignment - (kLengthBytes + text.size()) % kDataAlignment) % kDataAlignment,
              ' ');
  if (text.size() > kMaxHeaderBytes) {
    return fail(StatusCode::kInvalidArgument, "the header of a checkpoint would exceed 100 MB");
  }
  return text;
}

Status read_exactly(int descriptor,
                    std::span<std::byte> into,
                    std::uint64_t offset,
                    const std::string& path) {
  while (!into.empty()) {
    const ssize_t got = ::pread(descriptor, into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return {StatusCode::kUnavailable,
              "cannot read '" + path + "': " + std::generic_category().message(errno)};
    }
    if (got == 0) {
      return broken(path, "it ends too early");
    }
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return Status::ok();
}

}  // namespace

std::string_view to_string(ElementType type) noexcept {
  return kTypes[static_cast<std::size_t>(type)].name;
}

std::size_t size_of(ElementType type) noexcept {
  return kTypes[static_cast<std::size_t>(type)].bytes;
}

Status write_safetensors(const std::string& path,
                         std::span<const TensorToWrite> tensors,
                         const Metadata& metadata) {
  STRETTO_TRY_ASSIGN(const std::string header, make_header(tensors, metadata));
  STRETTO_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path));
  const std::uint64_t length = header.size();
  STRETTO_TRY(file.write(std::as_bytes(std::span(&length, 1))));
  STRETTO_TRY(file.write(std::as_bytes(std::span(header))));
  for (const auto& tensor : tensors) {
    STRETTO_TRY(file.write(tensor.bytes));
  }
  return file.commit();
}

Result<Header> parse_header(std::span<const std::byte> front,
                            std::uint64_t file_bytes,
                            const std::string& path) {
  if (front.size() < kLengthBytes || file_bytes < front.size()) {
    return fail(broken(path, "it is shorter than 8 bytes"));
  }
  const auto length = ByteReader(front).get<std::uint64_t>();
  if (length > kMaxHeaderBytes) {
    return fail(broken(path, "its header claims " + std::to_string(length) + " bytes"));
  }
  if (length > file_bytes - kLengthBytes || length > front.size() - kLengthBytes) {
    return fail(broken(path,
                       "its header claims " + std::to_string(length) + " bytes, but only " +
                           std::to_string(file_bytes - kLengthBytes) + " follow (truncated?)"));
  }
  const std::uint64_t data_bytes = file_bytes - kLengthBytes - length;
  STRETTO_TRY_ASSIGN(
      const Json json,
      parse_json(front.subspan(kLengthBytes, static_cast<std::size_t>(length)), path));
  Header header;
  header.data_begin = kLengthBytes + length;
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadataKey) {
      if (!value.is_object()) {
        return fail(broken(path, "its metadata is not a JSON object"));
      }
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) {
          return fail(broken(path, "its metadata " + shown(key) + " is not a string"));
        }
        header.metadata[key] = text.get<std::string>();
      }
      continue;
    }
    STRETTO_TRY_ASSIGN(auto entry, parse_tensor(name, value, data_bytes, path));
    header.tensors.push_back(std::move(entry));
  }
  STRETTO_TRY(check_cover(header.tensors, data_bytes, path));
  return header;
}

SafetensorsFile::SafetensorsFile(std::string path, FileDescriptor descriptor, Header header)
    : path_(std::move(path)), descriptor_(std::move(descriptor)), header_(std::move(header)) {}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  FileDescriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat information {};
  if (!descriptor.is_open() || ::fstat(descriptor.get(), &information) != 0) {
    return fail(StatusCode::kUnavailable,
                "cannot read '" + path + "': " + std::generic_category().message(errno));
  }
  if (!S_ISREG(information.st_mode)) {
    return fail(StatusCode::kInvalidArgument, "'" + path + "' is not a regular file");
  }
  const auto file_bytes = static_cast<std::uint64_t>(information.st_size);
  std::vector<std::byte> front(
      static_cast<std::size_t>(std::min<std::uint64_t>(file_bytes, kLengthBytes)));
  STRETTO_TRY(read_exactly(descriptor.get(), front, 0, path));
  if (front.size() == kLengthBytes) {
    const auto length = ByteReader(front).get<std::uint64_t>();
    // An absurd length is parse_header's to refuse; here it only must not be allocated.
    if (length <= std::min(kMaxHeaderBytes, file_bytes - kLengthBytes)) {
      front.resize(kLengthBytes + static_cast<std::size_t>(length));
      STRETTO_TRY(read_exactly(
          descriptor.get(), std::span(front).subspan(kLengthBytes), kLengthBytes, path));
    }
  }
  STRETTO_TRY_ASSIGN(auto header, parse_header(front, file_bytes, path));
  return SafetensorsFile(path, std::move(descriptor), std::move(header));
}

Result<TensorEntry> SafetensorsFile::find(const std::string& name,
                                          ElementType type,
                                          const Shape& shape) const {
  for (const auto& entry : header_.tensors) {
    if (entry.name != name) {
      continue;
    }
    if (entry.type != type || entry.shape != shape) {
      return fail(StatusCode::kInvalidArgument,
                  "'" + path_ + "' has tensor " + shown(name) + " as " +
                      std::string(to_string(entry.type)) + " " + to_string(entry.shape) + ", but " +
                      std::string(to_string(type)) + " " + to_string(shape) +
                      " is needed: the checkpoint is of another model");
    }
    return entry;
  }
  return fail(
      StatusCode::kInvalidArgument,
      "'" + path_ + "' has no tensor " + shown(name) + ": the checkpoint is of another model");
}

Status SafetensorsFile::read(const TensorEntry& entry, std::span<std::byte> into) const {
  if (into.size() != entry.end - entry.begin) {
    return {StatusCode::kInvalidArgument,
            "tensor " + shown(entry.name) + " has " + std::to_string(entry.end - entry.begin) +
                " bytes, but there is room for " + std::to_string(into.size())};
  }
  return read_exactly(descriptor_.get(), into, header_.data_begin + entry.begin, path_);
}

}  // namespace stretto::checkpoint

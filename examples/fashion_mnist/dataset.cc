// SPDX-License-Identifier: Apache-2.0
// IDX: a big-endian number 0x0000TTDD (type, dimensions), the lengths, then the elements.
#include "dataset.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include <zlib.h>

namespace fashion_mnist {
namespace {

using stretto::fail;
using stretto::Result;
using stretto::Status;
using stretto::StatusCode;

constexpr std::uint32_t kImageMagic = 0x00000803;
constexpr std::uint32_t kLabelMagic = 0x00000801;
/// No file of this dataset unpacks to more; a larger one is not ours.
constexpr std::size_t kMaxBytes = std::size_t{256} << 20;

struct CloseGzip {
  void operator()(gzFile file) const noexcept { ::gzclose(file); }
};
using Gzip = std::unique_ptr<std::remove_pointer_t<gzFile>, CloseGzip>;

Result<std::vector<std::uint8_t>> unpack(const std::string& path) {
  errno = 0;
  const Gzip file(::gzopen(path.c_str(), "rb"));
  if (file == nullptr) {
    return fail(StatusCode::kUnavailable,
                "cannot read '" + path + "': " + std::generic_category().message(errno) +
                    "; install Debian's package dataset-fashion-mnist, or say --data FOLDER");
  }
  std::vector<std::uint8_t> bytes;
  std::array<std::uint8_t, 1 << 16> piece{};
  while (true) {
    const int got = ::gzread(file.get(), piece.data(), static_cast<unsigned>(piece.size()));
    if (got < 0 || bytes.size() > kMaxBytes) {
      return fail(StatusCode::kInvalidArgument,
                  "'" + path + "' is damaged: " +
                      (got < 0 ? "it does not unpack" : "it unpacks to more than it should"));
    }
    if (got == 0) {
      return bytes;
    }
    bytes.insert(bytes.end(), piece.begin(), piece.begin() + got);
  }
}

std::uint32_t number_at(std::span<const std::uint8_t> bytes, std::size_t at) {
  return (std::uint32_t{bytes[at]} << 24) | (std::uint32_t{bytes[at + 1]} << 16) |
         (std::uint32_t{bytes[at + 2]} << 8) | std::uint32_t{bytes[at + 3]};
}

Status wrong(const std::string& path, const std::string& what) {
  return {StatusCode::kInvalidArgument, "'" + path + "' is not a file of Fashion-MNIST: " + what};
}

/// The elements of an IDX file of bytes whose first length may be anything.
Result<std::vector<std::uint8_t>> elements_of(const std::string& path,
                                              std::uint32_t magic,
                                              std::span<const std::uint32_t> inner_lengths) {
  STRETTO_TRY_ASSIGN(auto bytes, unpack(path));
  const std::size_t header = 8 + 4 * inner_lengths.size();
  if (bytes.size() < header || number_at(bytes, 0) != magic) {
    return fail(wrong(path, "it does not begin as one"));
  }
  std::size_t expected = number_at(bytes, 4);
  for (std::size_t i = 0; i < inner_lengths.size(); ++i) {
    if (number_at(bytes, 8 + 4 * i) != inner_lengths[i]) {
      return fail(wrong(path, "its pictures are not 28 x 28"));
    }
    expected *= inner_lengths[i];
  }
  if (bytes.size() - header != expected) {
    return fail(wrong(path,
                      "it holds " + std::to_string(bytes.size() - header) + " bytes and says " +
                          std::to_string(expected)));
  }
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(header));
  return bytes;
}

}  // namespace

Result<Pictures> load_pictures(const std::string& image_path, const std::string& label_path) {
  const std::array<std::uint32_t, 2> square{kSide, kSide};
  Pictures pictures;
  STRETTO_TRY_ASSIGN(pictures.pixels, elements_of(image_path, kImageMagic, square));
  STRETTO_TRY_ASSIGN(pictures.labels, elements_of(label_path, kLabelMagic, {}));
  if (pictures.pixels.size() != pictures.count() * kPixels) {
    return fail(wrong(label_path,
                      "it has " + std::to_string(pictures.count()) + " labels for " +
                          std::to_string(pictures.pixels.size() / kPixels) + " pictures"));
  }
  if (std::any_of(pictures.labels.begin(), pictures.labels.end(), [](std::uint8_t label) {
        return label >= kClasses;
      })) {
    return fail(wrong(label_path, "a label is above 9"));
  }
  return pictures;
}

Result<Dataset> load(const std::string& folder) {
  Dataset dataset;
  STRETTO_TRY_ASSIGN(dataset.train,
                     load_pictures(folder + "/train-images-idx3-ubyte.gz",
                                   folder + "/train-labels-idx1-ubyte.gz"));
  STRETTO_TRY_ASSIGN(
      dataset.test,
      load_pictures(folder + "/t10k-images-idx3-ubyte.gz", folder + "/t10k-labels-idx1-ubyte.gz"));
  return dataset;
}

}  // namespace fashion_mnist

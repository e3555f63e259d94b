// SPDX-License-Identifier: Apache-2.0
// Anything at all where a checkpoint should be: the front of a safetensors file, and the manifest
// in its metadata.
#include "checkpoint/manifest.hpp"
#include "checkpoint/safetensors.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

using namespace stretto::checkpoint;  // NOLINT(google-build-using-namespace): one small file

namespace {

/// What a header that was let in promises: each byte of the data belongs to exactly one tensor.
void check(const Header& header, std::uint64_t file_bytes) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  std::uint64_t bytes = 0;
  for (const TensorEntry& tensor : header.tensors) {
    if (tensor.begin > tensor.end) {
      std::abort();
    }
    if (tensor.begin < tensor.end) {
      places.emplace_back(tensor.begin, tensor.end);
    }
    bytes += tensor.end - tensor.begin;
  }
  std::sort(places.begin(), places.end());
  for (std::size_t i = 1; i < places.size(); ++i) {
    if (places[i].first != places[i - 1].second) {
      std::abort();
    }
  }
  if (header.data_begin + bytes != file_bytes) {
    std::abort();
  }
}

void check_manifest(const Metadata& metadata) {
  const auto manifest = manifest_of(metadata, "a checkpoint");
  if (!manifest) {
    return;
  }
  Metadata written;
  put_manifest(*manifest, written);
  const auto again = manifest_of(written, "its copy");
  if (!again || !(*again == *manifest)) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto header = parse_header(std::as_bytes(std::span(data, size)), size, "a checkpoint");
  if (header) {
    check(*header, size);
    check_manifest(header->metadata);
  }
  return 0;
}

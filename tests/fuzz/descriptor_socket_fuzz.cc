// SPDX-License-Identifier: Apache-2.0
// Anything at all at the socket by which ranks of one host hand memory over: any process of the
// host may write to it.  The first byte says how many descriptors come with it, and whether the
// true secret stands in front, so that what lies behind the secret is reached as well.
#include "base/log.hpp"
#include "exchange/shared/descriptor_socket.hpp"
#include "exchange/shared/descriptor_test_support.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include <fcntl.h>

using stretto::FileDescriptor;
using namespace stretto::exchange;  // NOLINT(google-build-using-namespace): one small file

namespace {

constexpr std::uint8_t kWithSecret = 4;
constexpr std::uint32_t kRound = 5;
/// What rank 0 of four awaits; of rank 2 nothing more.
constexpr std::array<std::size_t, 4> kAwaited{0, 1, 0, 3};

/// The number that the next descriptor gets: it grows if one is left open.
int next_descriptor() {
  return FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get();
}

/// Whether rank 0 waits for just this.
bool is_awaited(std::span<const std::byte> bytes, std::size_t descriptors) {
  DescriptorSocket::Note note;
  if (bytes.size() != sizeof note) {
    return false;
  }
  std::memcpy(&note, bytes.data(), sizeof note);
  return note.round == kRound && note.sender < kAwaited.size() && descriptors > 0 &&
         descriptors == kAwaited[note.sender];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  stretto::set_log_level(stretto::LogLevel::kOff);
  // Another secret for each input: the fuzzer reads those that are compared.
  auto socket = DescriptorSocket::open(0).value();
  const std::size_t descriptors = data[0] % 4;
  const bool with_secret = (data[0] & kWithSecret) != 0;
  std::vector<std::byte> bytes;
  if (with_secret) {
    bytes.resize(sizeof socket.address().secret);
    std::memcpy(bytes.data(), socket.address().secret.data(), bytes.size());
  }
  const auto rest = std::as_bytes(std::span(data + 1, size - 1));
  bytes.insert(bytes.end(), rest.begin(), rest.end());

  const int free_before = next_descriptor();
  if (!send_as_a_stranger(socket.address(), bytes, descriptors)) {
    return 0;  // too long for the system
  }
  {
    DescriptorSocket::Letter letter;
    const auto came = socket.receive({kRound, kAwaited}, letter);
    const bool taken = came && *came == DescriptorSocket::Came::kLetter;
    if (!came || taken != (with_secret && is_awaited(bytes, descriptors)) ||
        letter.files.size() != (taken ? descriptors : 0) || socket.refused() != (taken ? 0U : 1U)) {
      std::abort();
    }
  }
  if (next_descriptor() != free_before) {
    std::abort();
  }
  return 0;
}

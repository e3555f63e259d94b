// SPDX-License-Identifier: Apache-2.0
// A stranger that sends anything at all to either side of the handshake: never let in.
#include "transport/tcp/handshake.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

using stretto::Rank;
using stretto::transport::Handshake;
using stretto::transport::Identity;

namespace {

void feed(Handshake handshake, std::span<const std::byte> bytes) {
  while (!bytes.empty() && !handshake.input().empty()) {
    // Pieces of uneven length, as a network may cut them.
    const std::size_t wanted = std::min(handshake.input().size(), bytes.size());
    const std::size_t step = std::max<std::size_t>(1, wanted - wanted / 3);
    std::memcpy(handshake.input().data(), bytes.data(), step);
    handshake.received(step);
    handshake.sent(handshake.output().size() / 2);
    bytes = bytes.subspan(step);
  }
  if (handshake.state() == Handshake::State::kDone) {
    std::abort();  // the token was never in the input
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Identity low{Rank{1}, 4, 42, "a token that no input holds"};
  static const Identity high{Rank{3}, 4, 42, "a token that no input holds"};
  const auto bytes = std::as_bytes(std::span(data, size));
  feed(Handshake::acceptor(low, 0x1234567), bytes);
  feed(Handshake::connector(high, Rank{1}, 0x7654321), bytes);
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Anything at all on a control connection: the frame reader in pieces, then every decoder.
#include "rendezvous/frame.hpp"
#include "rendezvous/gather_round.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

using namespace stretto::rendezvous;  // NOLINT(google-build-using-namespace): one small file

namespace {

void decode_all(std::span<const std::byte> body) {
  static_cast<void>(decode_challenge(body));
  static_cast<void>(decode_hello(body));
  static_cast<void>(decode_accepted(body));
  static_cast<void>(decode_notice(body));
  static_cast<void>(decode_gathered(body));
  if (auto call = decode_gather_call(body)) {
    if (encode(*call)->size() != body.size() + kFrameHeaderBytes) {
      std::abort();  // something was dropped or invented
    }
    GatherRound round(2);
    static_cast<void>(round.add(1, call->sequence, call->what, std::move(call->blob)));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  decode_all(bytes);
  if (size == 0) {
    return 0;
  }
  const std::size_t piece = 1 + data[0];
  FrameReader reader(kStrangerBodyBytes);
  for (std::size_t at = 1; at < size; at += piece) {
    reader.append(bytes.subspan(at, std::min(piece, size - at)));
    while (true) {
      const auto frame = reader.next();
      if (!frame) {
        return 0;
      }
      if (!frame->has_value()) {
        break;
      }
      if ((*frame)->body.size() > kStrangerBodyBytes) {
        std::abort();
      }
      decode_all((*frame)->body);
    }
  }
  return 0;
}

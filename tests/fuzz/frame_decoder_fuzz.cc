// SPDX-License-Identifier: Apache-2.0
// A peer that has shaken hands and then sends anything at all: the decoders, and a live connection
// whose messages are accepted and granted, so that the bytes reach every state.
#include "transport/tcp/connection.hpp"
#include "transport/wire.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include <sys/socket.h>

using stretto::FileDescriptor;
using stretto::Rank;
using stretto::spi::TransportEvent;
using namespace stretto::transport;  // NOLINT(google-build-using-namespace): one small file

namespace {

void decode(std::span<const std::byte> bytes) {
  if (bytes.size() >= kFrameHeadBytes) {
    const auto head = decode_frame_head(bytes.first<kFrameHeadBytes>());
    if (head && !std::ranges::equal(encode(*head), bytes.first<kFrameHeadBytes>())) {
      std::abort();
    }
  }
  if (bytes.size() >= kMessageHeaderBytes) {
    static_cast<void>(decode_message_header(bytes.first<kMessageHeaderBytes>()));
  }
}

/// Feeds the bytes to a connection, accepting what is small enough.
void converse(std::span<const std::byte> bytes, bool credit) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    std::abort();
  }
  const FileDescriptor peer(ends[1]);
  EventQueue events;
  stretto::spi::TransportCounters counters;
  std::vector<std::vector<std::byte>> buffers;
  const std::vector<std::byte> payload(300);
  Connection connection(Rank{1},
                        FileDescriptor(ends[0]),
                        FlowOptions{.window_bytes = 128, .fragment_bytes = 64, .credit = credit},
                        WindowSizer(std::size_t{128}),
                        events,
                        counters);
  stretto::spi::MessageHeader header;
  header.payload_bytes = payload.size();
  header.flags = credit ? stretto::spi::kExpected : std::uint8_t{0};
  static_cast<void>(connection.announce(header, payload, 1));
  while (connection.is_open() && !bytes.empty()) {
    const auto step = bytes.first(std::min<std::size_t>(bytes.size(), 100));
    if (::send(peer.get(), step.data(), step.size(), MSG_NOSIGNAL) < 0) {
      break;
    }
    bytes = bytes.subspan(step.size());
    connection.receive();
    connection.send();
    TransportEvent event;
    while (events.take(std::span(&event, 1)) == 1) {
      if (event.kind == TransportEvent::Kind::kAnnounced && event.header.payload_bytes < 4096) {
        buffers.emplace_back(event.header.payload_bytes);
        static_cast<void>(connection.accept(event.message, buffers.back()));
        connection.send();
      }
    }
    std::byte drain[4096];
    static_cast<void>(::recv(peer.get(), drain, sizeof drain, MSG_DONTWAIT));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  decode(bytes);
  converse(bytes, false);
  converse(bytes, true);
  return 0;
}

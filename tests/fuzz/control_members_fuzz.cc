// SPDX-License-Identifier: Apache-2.0
// A rank that has been let in and then sends anything at all over its control connection: to rank 0
// (Hub), or as rank 0 to another (Spoke).  Whatever it is, an honest rank's all_gather ends before
// its deadline, with an answer or an error.
//
// The first byte says which side is fed, and whether the rest is a stream, or a list of frames
// (kind, length of the body, body) that get their headers here.
#include "rendezvous/connection.hpp"
#include "rendezvous/hub.hpp"
#include "rendezvous/socket.hpp"
#include "rendezvous/spoke.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include <sys/socket.h>
#include <sys/un.h>

using namespace stretto;              // NOLINT(google-build-using-namespace): one small file
using namespace stretto::rendezvous;  // NOLINT(google-build-using-namespace): one small file

namespace {

constexpr std::uint8_t kToSpoke = 1;
constexpr std::uint8_t kAsFrames = 2;
constexpr std::size_t kRanks = 3;
constexpr std::string_view kWhat = "fuzz";

void require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

/// Far away: nothing here may wait for it.
Deadline far() {
  return Deadline::after(std::chrono::seconds(60));
}

GroupOptions options_of(std::size_t rank) {
  GroupOptions options;
  options.rank = rank;
  options.size = kRanks;
  options.token = "secret";
  options.dead_after = std::chrono::seconds(60);
  return options;
}

spi::Bytes stream_of(std::span<const std::byte> input, bool as_frames) {
  if (!as_frames) {
    return {input.begin(), input.end()};
  }
  spi::Bytes stream;
  while (input.size() >= 2) {
    const auto kind = static_cast<FrameKind>(input[0]);
    const auto body =
        input.subspan(2, std::min(input.size() - 2, std::to_integer<std::size_t>(input[1])));
    const SharedFrame frame = encode(kind, body);
    stream.insert(stream.end(), frame->begin(), frame->end());
    input = input.subspan(2 + body.size());
  }
  return stream;
}

/// Sends all, and that nothing more will come.
void pour(const Connection& connection, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(connection.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno != EAGAIN || !wait_ready(connection.descriptor(), Direction::kOut, far())) {
      break;  // the other side has had enough
    }
  }
  static_cast<void>(::shutdown(connection.descriptor(), SHUT_WR));
}

/// Reads until a frame of these kinds comes; nothing if the connection ends before.
std::optional<Frame> read_until(Connection& connection, std::initializer_list<FrameKind> kinds) {
  const Deadline deadline = far();
  while (auto frame = connection.receive_blocking(deadline)) {
    if (std::find(kinds.begin(), kinds.end(), frame->kind) != kinds.end()) {
      return std::move(*frame);
    }
  }
  require(!deadline.passed());
  return std::nullopt;
}

/// A listening socket without a port, and how to reach it.
struct Door {
  FileDescriptor listener{::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  sockaddr_un address{};
  socklen_t length = sizeof address;

  Door() {
    address.sun_family = AF_UNIX;  // the system gives it a name that is free
    auto* any = reinterpret_cast<sockaddr*>(&address);
    require(::bind(listener.get(), any, sizeof address.sun_family) == 0 &&
            ::listen(listener.get(), 4) == 0 && ::getsockname(listener.get(), any, &length) == 0);
  }
  std::unique_ptr<Connection> connect() const {
    FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    require(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0);
    return std::make_unique<Connection>(std::move(socket));
  }
};

/// Connects and greets as rank `rank` does.
std::unique_ptr<Connection> let_in(const Door& door, std::size_t rank) {
  auto connection = door.connect();
  const auto challenge = read_until(*connection, {FrameKind::kChallenge});
  require(challenge.has_value());
  Hello hello;
  hello.rank = static_cast<std::uint32_t>(rank);
  hello.size = kRanks;
  hello.proof = prove_token(options_of(rank).token,
                            Prover::kJoiner,
                            decode_challenge(challenge->body).value().nonce,
                            hello.nonce,
                            hello.rank,
                            hello.size);
  require(connection->send_blocking(encode(hello), far()).is_ok());
  require(read_until(*connection, {FrameKind::kAccepted}).has_value());
  return connection;
}

/// Rank 1 sends it to rank 0; rank 2 is as it should be.
void feed_hub(std::span<const std::byte> stream) {
  Door door;
  FileDescriptor listener = std::move(door.listener);
  const Deadline deadline = far();
  const auto hub = Hub::make(options_of(0), std::move(listener), deadline).value();
  const auto forger = let_in(door, 1);
  const auto honest = let_in(door, 2);
  require(hub->wait_joined(deadline).is_ok());
  require(honest->send_blocking(encode(GatherCall{1, std::string(kWhat), {}}), deadline).is_ok());
  pour(*forger, stream);
  const auto gathered = hub->all_gather(kWhat, {}, deadline);
  require(!gathered || gathered->size() == kRanks);
  // The honest rank hears how it ended as well, or who was lost.
  require(read_until(*honest, {FrameKind::kGathered, FrameKind::kBroken, FrameKind::kLost})
              .has_value());
  require(!deadline.passed());
}

/// Rank 0 sends it to rank 1.
void feed_spoke(std::span<const std::byte> stream) {
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  Connection forger{FileDescriptor(ends[1])};
  const Deadline deadline = far();
  const auto spoke = Spoke::take_over(options_of(1),
                                      std::make_unique<Connection>(FileDescriptor(ends[0])),
                                      Accepted{.dead_after_ms = 60'000})
                         .value();
  std::thread caller([&] {
    const auto gathered = spoke->all_gather(kWhat, {}, deadline);
    require(!gathered || gathered->size() == kRanks);
  });
  require(read_until(forger, {FrameKind::kGather}).has_value());
  pour(forger, stream);
  caller.join();
  static_cast<void>(spoke->wait_joined(deadline));
  require(!deadline.passed());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const auto input = std::as_bytes(std::span(data + 1, size - 1));
  const auto stream = stream_of(input, (data[0] & kAsFrames) != 0);
  (data[0] & kToSpoke) != 0 ? feed_spoke(stream) : feed_hub(stream);
  return 0;
}

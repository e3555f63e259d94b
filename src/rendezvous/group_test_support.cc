// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/group_test_support.hpp"

#include "rendezvous/socket.hpp"

#include <stdexcept>

#include <poll.h>

namespace stretto::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

SocketAddress loopback(std::uint16_t port) {
  return resolve("127.0.0.1", port, Deadline::after(seconds(5))).value().front();
}

/// Ends the test, and says why.
void require(bool holds, const std::string& otherwise) {
  if (!holds) {
    throw std::runtime_error(otherwise);
  }
}

}  // namespace

bool readable(int descriptor, Deadline deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left()).count() + 1;
  pollfd entry{.fd = descriptor, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, static_cast<int>(left)) == 1;
}

Status wait_bad(spi::ControlPlane& plane) {
  require(readable(plane.descriptor(), Deadline::after(seconds(20))), "nothing was told");
  return plane.health();
}

GroupOptions make_options(std::size_t rank, std::size_t size, std::uint16_t port) {
  GroupOptions options;
  options.rank = rank;
  options.size = size;
  options.master_port = port;
  options.token = "secret";
  options.timeout = seconds(30);
  return options;
}

std::vector<std::shared_ptr<StarGroup>> join_all(std::size_t size, milliseconds dead_after) {
  const std::uint16_t port = find_free_port().value();
  std::vector<std::shared_ptr<StarGroup>> groups(size);
  on_every_rank(size, [&](std::size_t rank) {
    auto options = make_options(rank, size, port);
    options.dead_after = dead_after;
    auto group = StarGroup::join(options);
    require(group.has_value(), group ? "" : group.error().to_string());
    groups[rank] = std::move(*group);
  });
  return groups;
}

FileDescriptor connect_when_open(std::uint16_t port) {
  const Deadline deadline = Deadline::after(seconds(20));
  while (!deadline.passed()) {
    if (auto socket = connect_to(loopback(port), deadline)) {
      return std::move(*socket);
    }
    std::this_thread::yield();
  }
  return {};
}

HandMadeRank greet_by_hand(const GroupOptions& options, std::uint32_t version) {
  const Deadline deadline = Deadline::after(seconds(20));
  HandMadeRank made;
  made.connection = std::make_unique<Connection>(connect_when_open(options.master_port));
  const auto challenge =
      decode_challenge(made.connection->receive_blocking(deadline).value().body).value();
  Hello hello;
  hello.version = version;
  hello.rank = static_cast<std::uint32_t>(options.rank);
  hello.size = static_cast<std::uint32_t>(options.size);
  hello.proof = prove_token(
      options.token, Prover::kJoiner, challenge.nonce, hello.nonce, hello.rank, hello.size);
  require(made.connection->send_blocking(encode(hello), deadline).is_ok(), "no greeting was sent");
  made.answer = made.connection->receive_blocking(deadline).value();
  return made;
}

}  // namespace stretto::rendezvous

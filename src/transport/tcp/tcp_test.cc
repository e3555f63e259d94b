// SPDX-License-Identifier: Apache-2.0
#include "base/byte_order.hpp"
#include "transport/tcp/mesh.hpp"
#include "transport/tcp/tcp_test_support.hpp"
#include "transport/wire.hpp"

#include <array>
#include <random>
#include <string>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

namespace stretto::transport {
namespace {

using spi::TransportEvent;

/// Polls until an event comes; fails the test after 10 s.
TransportEvent next_event(spi::Transport& transport) {
  const auto deadline = Deadline::after(std::chrono::seconds(10));
  std::array<TransportEvent, 1> events;
  while (!deadline.passed()) {
    if (transport.poll(events).value() == 1) {
      return events[0];
    }
    if (transport.next_due() > Clock::now()) {
      pollfd descriptor{transport.descriptor(), POLLIN, 0};
      static_cast<void>(::poll(&descriptor, 1, 1000));
    }
  }
  ADD_FAILURE() << "no event";
  return {};
}

void write_all(int socket, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    pollfd descriptor{socket, POLLOUT, 0};
    static_cast<void>(::poll(&descriptor, 1, 10'000));
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ASSERT_GT(sent, 0);
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

/// Rank 0 as it is, and the bare socket of a rank 1 that has shaken hands.
struct Pair {
  std::unique_ptr<spi::Transport> transport;
  FileDescriptor socket;
};

Pair with_bare_peer() {
  const auto groups = Group::in_process(2);
  const TcpOptions options = quick_options();
  Pair pair;
  std::thread rank0(
      [&] { pair.transport = make_tcp_transport(groups[0]->control(), options).value(); });
  const auto listener = Listener::open(SocketAddress::parse("127.0.0.1", 0).value()).value();
  ByteWriter mine;
  mine.put_text(listener.address().host());
  mine.put(listener.address().port());
  const auto deadline = Deadline::after(std::chrono::seconds(10));
  const auto blobs =
      groups[1]->control().all_gather("the data addresses", mine.bytes(), deadline).value();
  std::vector<SocketAddress> addresses;
  for (const auto& blob : blobs) {
    ByteReader reader(blob);
    const std::string host = reader.get_text();
    addresses.push_back(SocketAddress::parse(host, reader.get<std::uint16_t>()).value());
  }
  const Identity identity{Rank{1}, 2, options.job_id, options.token};
  Mesh mesh(listener, identity, addresses, {});
  pair.socket = std::move(mesh.connect(groups[1]->control(), deadline).value()[0]);
  rank0.join();
  return pair;
}

std::vector<std::byte> bytes_of(const FrameHead& head) {
  const auto bytes = encode(head);
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> announcement(std::uint64_t number, const spi::MessageHeader& header) {
  auto bytes = bytes_of({FrameType::kAnnounce, kMessageHeaderBytes, number, 0});
  const auto body = encode(header);
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

TEST(Tcp, RubbishFromARankEndsItsConnectionAndIsCounted) {
  spi::MessageHeader absurd;
  absurd.payload_bytes = kMaxPayloadBytes + 1;
  auto other_version = bytes_of({FrameType::kBye, 0, 0, 0});
  other_version[0] = std::byte{9};
  const std::vector<std::vector<std::byte>> rubbish = {
      other_version,
      bytes_of({FrameType::kData, 10, 1, 0}),
      bytes_of({FrameType::kGrant, 0, 1, 10}),
      bytes_of({static_cast<FrameType>(200), 0, 0, 0}),
      announcement(2, {}),
      announcement(1, absurd),
  };
  for (const auto& bytes : rubbish) {
    Pair pair = with_bare_peer();
    write_all(pair.socket.get(), bytes);
    const TransportEvent event = next_event(*pair.transport);
    EXPECT_EQ(event.kind, TransportEvent::Kind::kPeerLost);
    EXPECT_EQ(event.peer, Rank{1});
    EXPECT_EQ(pair.transport->counters().refused, 1U);
    const Status status = pair.transport->announce(Rank{1}, {}, {}, 1);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    EXPECT_NE(status.message().find("rank 1 sent "), std::string_view::npos) << status.message();
  }
}

TEST(Tcp, APeerThatDiesInsideAMessageIsLost) {
  Pair pair = with_bare_peer();
  spi::MessageHeader header;
  header.payload_bytes = 100'000;
  write_all(pair.socket.get(), announcement(1, header));
  const TransportEvent announced = next_event(*pair.transport);
  ASSERT_EQ(announced.kind, TransportEvent::Kind::kAnnounced);
  std::vector<std::byte> buffer(100'000);
  ASSERT_TRUE(pair.transport->accept(Rank{1}, announced.message, buffer).is_ok());
  std::array<TransportEvent, 1> events;
  ASSERT_EQ(pair.transport->poll(events).value(), 0U);  // the grant leaves
  write_all(pair.socket.get(), bytes_of({FrameType::kData, 5000, 1, 0}));
  write_all(pair.socket.get(), std::vector<std::byte>(3000));
  pair.socket.reset();
  EXPECT_EQ(next_event(*pair.transport).kind, TransportEvent::Kind::kPeerLost);
  EXPECT_EQ(pair.transport->accept(Rank{1}, announced.message, buffer).code(),
            StatusCode::kPeerLost);
}

TEST(Tcp, RandomBytesAfterTheHandshakeNeverCrash) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Pair pair = with_bare_peer();
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes(1000);
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random());
    }
    write_all(pair.socket.get(), bytes);
    EXPECT_EQ(next_event(*pair.transport).kind, TransportEvent::Kind::kPeerLost) << seed;
  }
}

TEST(Tcp, AFarewellIsNoRubbish) {
  Pair pair = with_bare_peer();
  write_all(pair.socket.get(), bytes_of({FrameType::kBye, 0, 0, 0}));
  pair.socket.reset();
  EXPECT_EQ(next_event(*pair.transport).kind, TransportEvent::Kind::kPeerLost);
  EXPECT_EQ(pair.transport->counters().refused, 0U);
  EXPECT_EQ(pair.transport->announce(Rank{1}, {}, {}, 1).message(), "rank 1 has left the group");
}

TEST(Tcp, RanksWithOtherTokensOrJobsRefuseEachOther) {
  for (const bool other_token : {true, false}) {
    const auto results = connect_ranks(2, [&](std::size_t rank) {
      TcpOptions options = quick_options();
      if (rank == 1) {
        options.token = other_token ? "red" : options.token;
        options.job_id += other_token ? 0 : 1;
      }
      return options;
    });
    ASSERT_FALSE(results[0].has_value());
    ASSERT_FALSE(results[1].has_value());
    EXPECT_EQ(results[1].error().code(), StatusCode::kInvalidArgument);
    const std::string text(results[1].error().message());
    EXPECT_NE(text.find(other_token ? "its token is another one" : "it belongs to another job"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("rank 0 at 127.0.0.1:"), std::string::npos) << text;
  }
}

TEST(Tcp, StrangersAreRefusedCountedAndStallNobody) {
  const auto groups = Group::in_process(2);
  const Identity low{Rank{0}, 2, 42, "blue"};
  const Identity high{Rank{1}, 2, 42, "blue"};
  const auto local = SocketAddress::parse("127.0.0.1", 0).value();
  const auto listener0 = Listener::open(local).value();
  const auto listener1 = Listener::open(local).value();
  const std::vector<SocketAddress> addresses = {listener0.address(), listener1.address()};
  // Silent strangers would hold their places for the whole test if nobody pushed them out.
  Mesh mesh0(
      listener0, low, addresses, {.handshake_timeout = std::chrono::minutes(1), .socket = {}});
  const auto deadline = Deadline::after(std::chrono::seconds(20));
  Result<std::vector<FileDescriptor>> sockets0;
  std::thread rank0([&] { sockets0 = mesh0.connect(groups[0]->control(), deadline); });

  std::mt19937_64 random(3);
  std::vector<FileDescriptor> strangers;
  for (std::size_t i = 0; i < 100; ++i) {
    FileDescriptor stranger(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(stranger.get(), addresses[0].data(), addresses[0].size()), 0);
    std::vector<std::byte> bytes(i % 3 == 0 ? 0 : random() % 100);
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random());
    }
    static_cast<void>(::send(stranger.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
    strangers.push_back(std::move(stranger));
  }
  Mesh mesh1(listener1, high, addresses, {});
  const auto sockets1 = mesh1.connect(groups[1]->control(), deadline);
  rank0.join();
  ASSERT_TRUE(sockets1.has_value()) << sockets1.error().message();
  ASSERT_TRUE(sockets0.has_value()) << sockets0.error().message();
  EXPECT_TRUE((*sockets0)[1].is_open());
  EXPECT_GE(mesh0.refused(), 80U);  // all but those who still have a place
}

TEST(Tcp, ABusyRankIsWaitedForAndNotTriedAgain) {
  const auto groups = Group::in_process(2);
  const Identity low{Rank{0}, 2, 42, "blue"};
  const Identity high{Rank{1}, 2, 42, "blue"};
  const auto local = SocketAddress::parse("127.0.0.1", 0).value();
  const auto listener0 = Listener::open(local).value();
  const auto listener1 = Listener::open(local).value();
  const std::vector<SocketAddress> addresses = {listener0.address(), listener1.address()};
  const auto deadline = Deadline::after(std::chrono::seconds(20));
  Mesh mesh1(listener1,
             high,
             addresses,
             {.handshake_timeout = std::chrono::milliseconds(20), .socket = {}});
  Result<std::vector<FileDescriptor>> sockets1;
  std::thread rank1([&] { sockets1 = mesh1.connect(groups[1]->control(), deadline); });
  // Rank 0 looks only after rank 1's time-out for strangers has passed more than once.
  pollfd nothing{-1, POLLIN, 0};
  static_cast<void>(::poll(&nothing, 1, 100));
  Mesh mesh0(listener0, low, addresses, {});
  const auto sockets0 = mesh0.connect(groups[0]->control(), deadline);
  rank1.join();
  EXPECT_TRUE(sockets0.has_value());
  EXPECT_TRUE(sockets1.has_value());
  EXPECT_EQ(mesh0.refused(), 0U);
}

TEST(Tcp, SaysWhoIsMissingAtWhichAddressAndWhy) {
  const auto groups = Group::in_process(2);
  const auto local = SocketAddress::parse("127.0.0.1", 0).value();
  std::vector<SocketAddress> addresses(2);
  {
    const auto gone = Listener::open(local).value();
    addresses[0] = addresses[1] = gone.address();
  }
  const auto listener = Listener::open(local).value();
  const auto soon = [] { return Deadline::after(std::chrono::milliseconds(120)); };
  const Identity high{Rank{1}, 2, 42, "blue"};
  Mesh connecting(listener, high, addresses, {});
  const auto unreachable = connecting.connect(groups[1]->control(), soon());
  EXPECT_EQ(unreachable.error().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(unreachable.error().message(),
            "rank 0 could not be reached at " + addresses[0].to_string() +
                " (Connection refused); check that the address can be reached from the other "
                "hosts, or name another interface");
  const Identity low{Rank{0}, 2, 42, "blue"};
  Mesh waiting(listener, low, addresses, {});
  const auto absent = waiting.connect(groups[0]->control(), soon());
  EXPECT_NE(absent.error().message().find("rank 1 has not connected to 127.0.0.1:"),
            std::string_view::npos)
      << absent.error().message();
}

TEST(Tcp, APortThatIsTakenIsNamed) {
  const auto taken = Listener::open(SocketAddress::parse("127.0.0.1", 0).value()).value();
  TcpOptions options = quick_options();
  options.first_port = taken.address().port();
  const auto groups = Group::in_process(1);
  const auto result = make_tcp_transport(groups[0]->control(), options);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), StatusCode::kUnavailable);
  EXPECT_EQ(result.error().message(),
            "cannot bind to " + taken.address().to_string() +
                ": Address already in use; choose another port or interface");
}

TEST(Tcp, AnInterfaceThatDoesNotExistIsNamedBesideThoseThatDo) {
  TcpOptions options = quick_options();
  options.interface = "nosuch0";
  const auto groups = Group::in_process(1);
  const auto result = make_tcp_transport(groups[0]->control(), options);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), StatusCode::kUnavailable);
  const std::string text(result.error().message());
  EXPECT_NE(text.find("no interface 'nosuch0'"), std::string::npos) << text;
  EXPECT_NE(text.find("lo (127.0.0.1)"), std::string::npos) << text;
}

TEST(Tcp, ListensOnTheInterfaceThatIsNamed) {
  EXPECT_EQ(choose_local_address("lo", "").value().host(), "127.0.0.1");
  EXPECT_EQ(choose_local_address("127.0.0.5", "").value().host(), "127.0.0.5");
  EXPECT_EQ(choose_local_address("", "127.0.0.1").value().host(), "127.0.0.1");
  EXPECT_EQ(choose_local_address("", "::1").value().to_string(), "[::1]:0");
}

TEST(Tcp, OptionsThatCannotWorkAreRefused) {
  const auto groups = Group::in_process(1);
  TcpOptions options = quick_options();
  options.window_bytes = 1;
  EXPECT_EQ(make_tcp_transport(groups[0]->control(), options).error().code(),
            StatusCode::kInvalidArgument);
  options = quick_options();
  options.first_port = 65535;
  const auto two = connect_ranks(2, [&](std::size_t) { return options; });
  EXPECT_EQ(two[1].error().code(), StatusCode::kInvalidArgument);
  options = quick_options();
  options.congestion = "nosuch";
  const auto other = connect_ranks(2, [&](std::size_t) { return options; });
  EXPECT_FALSE(other[1].has_value());
}

}  // namespace
}  // namespace stretto::transport

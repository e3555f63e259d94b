// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/connection.hpp"

#include <array>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace stretto::transport {
namespace {

/// One side of a connection, and the bare socket of the other.
struct End {
  EventQueue events;
  spi::TransportCounters counters;
  FileDescriptor other;
  std::unique_ptr<Connection> connection;

  End() {
    std::array<int, 2> sockets{-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets.data()), 0);
    other = FileDescriptor(sockets[1]);
    connection = std::make_unique<Connection>(Rank{1},
                                              FileDescriptor(sockets[0]),
                                              FlowOptions{},
                                              WindowSizer(std::size_t{1} << 20),
                                              events,
                                              counters);
  }

  /// Lets the other side end, and returns what this side says about it.
  std::string receive_end() {
    other.reset();
    ::testing::internal::CaptureStderr();
    connection->receive();
    return ::testing::internal::GetCapturedStderr();
  }

  bool is_lost() {
    std::array<spi::TransportEvent, 2> found;
    return events.take(found) == 1 && found[0].kind == spi::TransportEvent::Kind::kPeerLost;
  }
};

TEST(Connection, APeerThatEndsWithoutAFarewellIsAWarning) {
  End end;
  EXPECT_NE(end.receive_end().find("rank 1 closed its connection without a farewell"),
            std::string::npos);
  EXPECT_TRUE(end.is_lost());
}

// It has read this side's farewell, closed its own, and has nobody left to say farewell to.
TEST(Connection, APeerThatEndsAfterThisSidesFarewellIsNoWarning) {
  End end;
  end.connection->say_bye();
  end.connection->send();
  EXPECT_EQ(end.receive_end(), "");
  EXPECT_TRUE(end.is_lost());
}

TEST(Connection, APeersFarewellIsNoWarning) {
  End end;
  End peer;
  peer.connection->say_bye();
  peer.connection->send();
  std::array<std::byte, 64> farewell;
  const ssize_t size = ::read(peer.other.get(), farewell.data(), farewell.size());
  ASSERT_GT(size, 0);
  ASSERT_EQ(::write(end.other.get(), farewell.data(), static_cast<std::size_t>(size)), size);
  EXPECT_EQ(end.receive_end(), "");
  EXPECT_TRUE(end.is_lost());
}

}  // namespace
}  // namespace stretto::transport

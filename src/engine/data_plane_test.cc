// SPDX-License-Identifier: Apache-2.0
#include "engine/data_plane.hpp"

#include "transport/inproc/inproc_transport.hpp"

#include <array>
#include <functional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::engine {
namespace {

using Events = std::vector<spi::TransportEvent::Kind>;

/// Memory at whose end somebody looks at what the other rank sees.
class WatchedBuffer final : public spi::Buffer {
 public:
  WatchedBuffer(std::size_t bytes, std::function<void()> at_end)
      : memory_(bytes), at_end_(std::move(at_end)) {}
  ~WatchedBuffer() override { at_end_(); }
  std::byte* data() const noexcept override { return memory_.data(); }
  std::size_t size() const noexcept override { return memory_.size(); }

 private:
  mutable std::vector<std::byte> memory_;
  std::function<void()> at_end_;
};

Events poll(spi::Transport& transport) {
  std::array<spi::TransportEvent, 8> events;
  const std::size_t count = transport.poll(events).value_or(0);
  Events kinds;
  for (std::size_t i = 0; i < count; ++i) {
    kinds.push_back(events[i].kind);
    if (events[i].kind == spi::TransportEvent::Kind::kAnnounced) {
      static std::array<std::byte, 64> into;
      EXPECT_TRUE(transport.accept(events[i].peer, events[i].message, into).is_ok());
    }
  }
  return kinds;
}

TEST(DataPlane, NobodyReadsItsMemoryWhenThatEnds) {
  auto ends = transport::make_inproc_transports(2).value();
  Events seen_at_end;
  {
    DataPlane data;
    data.transport = std::move(ends[0]);
    data.contributions = std::make_unique<WatchedBuffer>(64, [&] { seen_at_end = poll(*ends[1]); });
    spi::MessageHeader header;
    header.payload_bytes = 64;
    ASSERT_TRUE(
        data.transport->announce(Rank{1}, header, {data.contributions->data(), 64}, 1).is_ok());
    EXPECT_EQ(poll(*ends[1]), Events{spi::TransportEvent::Kind::kAnnounced});
  }
  EXPECT_EQ(seen_at_end, Events{spi::TransportEvent::Kind::kPeerLost});
}

}  // namespace
}  // namespace stretto::engine

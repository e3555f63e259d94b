// SPDX-License-Identifier: Apache-2.0
#include "transport/decorators/shaped_transport.hpp"

#include "transport/inproc/inproc_transport.hpp"

#include "stretto/spi/conformance/transport_endpoint.hpp"

#include <chrono>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>

namespace stretto::transport {
namespace {

using spi::conformance::Endpoint;
using spi::conformance::rank_at;
using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

/// Ranks on shaped links in a time of their own.
class Net {
 public:
  Net(std::size_t size, const LinkOptions& link) : start_(clock_.now()) {
    auto transports = make_inproc_transports(size).value();
    for (auto& inner : transports) {
      ends_.push_back(std::make_unique<Endpoint>(
          make_shaped_transport(std::move(inner), link, &clock_).value(), 1));
    }
  }
  Endpoint& at(std::size_t rank) { return *ends_[rank]; }
  double seconds() const { return duration<double>(clock_.now() - start_).count(); }
  std::size_t received() const {
    std::size_t count = 0;
    for (const auto& end : ends_) {
      count += end->received();
    }
    return count;
  }

  /// Does all that can be done at this moment.
  void pump(bool accepting = true) {
    for (bool busy = true; busy;) {
      busy = false;
      for (auto& end : ends_) {
        busy = end->turn() > 0 || busy;
        if (accepting && !end->announced().empty()) {
          end->accept_all();
          busy = true;
        }
      }
      for (auto& end : ends_) {
        pollfd descriptor{end->transport().descriptor(), POLLIN, 0};
        busy = ::poll(&descriptor, 1, 0) > 0 || busy;
      }
      for (const auto& end : ends_) {
        ASSERT_EQ(end->complaint(), "");
      }
    }
  }
  /// Lets time pass until `count` messages have been received; polls come up to `late` too late.
  void run_until_received(std::size_t count, nanoseconds late = nanoseconds(0)) {
    std::mt19937_64 random(7);
    for (pump(); received() < count; pump()) {
      ASSERT_TRUE(step(late.count() > 0 ? nanoseconds(static_cast<std::int64_t>(
                                              random() % static_cast<std::uint64_t>(late.count())))
                                        : late))
          << "nothing is due, " << received() << " received";
      ASSERT_FALSE(testing::Test::HasFatalFailure());
    }
  }
  /// To the next moment at which something is due.
  bool step(nanoseconds late = nanoseconds(0)) {
    TimePoint due = TimePoint::max();
    for (auto& end : ends_) {
      due = std::min(due, end->transport().next_due());
    }
    if (due == TimePoint::max()) {
      return false;
    }
    clock_.advance_to(due + late);
    return true;
  }

 private:
  ManualClock clock_;
  TimePoint start_;
  std::vector<std::unique_ptr<Endpoint>> ends_;
};

constexpr double kRate = 62.5e6;  // 500 Mbit/s

TEST(ShapedTransport, AMessageAloneTakesItsBytesAndThreeDelays) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{2'000'000}}) {
    Net net(2, {kRate, milliseconds(3)});
    net.at(0).send(rank_at(1), bytes);
    net.run_until_received(1);
    // There: the announcement.  Back: the grant.  There: the payload.
    EXPECT_NEAR(net.seconds(), 0.009 + static_cast<double>(bytes) / kRate, 5e-6) << bytes;
  }
}

TEST(ShapedTransport, DelayAloneTakesNoBandwidth) {
  Net net(2, {0, milliseconds(3)});
  net.at(0).send(rank_at(1), 5'000'000);
  net.run_until_received(1);
  EXPECT_NEAR(net.seconds(), 0.009, 1e-9);
}

/// Everyone to everyone; returns the time taken over the busiest link's bytes / rate.
double all_to_all(double rate, nanoseconds delay, nanoseconds late, std::uint64_t seed) {
  constexpr std::size_t kRanks = 4;
  constexpr std::size_t kMessages = 16;
  Net net(kRanks, {rate, delay});
  std::mt19937_64 random(seed);
  std::vector<double> out(kRanks);
  std::vector<double> in(kRanks);
  for (std::size_t i = 0; i < kMessages; ++i) {
    for (std::size_t from = 0; from < kRanks; ++from) {
      for (std::size_t step = 1; step < kRanks; ++step) {
        const std::size_t to = (from + step) % kRanks;
        const std::size_t bytes = (64 << 10) + random() % (192 << 10);
        net.at(from).send(rank_at(to), bytes, static_cast<std::uint32_t>(i));
        out[from] += static_cast<double>(bytes) + 64;
        in[to] += static_cast<double>(bytes) + 64;
      }
    }
  }
  net.run_until_received(kMessages * kRanks * (kRanks - 1), late);
  const double busiest = std::max(std::ranges::max(out), std::ranges::max(in));
  return net.seconds() / (busiest / rate);
}

TEST(ShapedTransport, FourRanksFillTheirLinksInBothDirections) {
  const double ratio = all_to_all(137.0 * 1e6 / 8, nanoseconds(0), nanoseconds(0), 3);
  EXPECT_GE(ratio, 1.0) << "faster than the link";
  EXPECT_LE(ratio, 1.03);
}

TEST(ShapedTransport, DelayIsCoveredByTheWindow) {
  const double ratio = all_to_all(kRate, milliseconds(2), nanoseconds(0), 4);
  EXPECT_GE(ratio, 1.0);
  EXPECT_LE(ratio, 1.03 + 0.006 / 0.125);  // three delays before the first message is there
}

TEST(ShapedTransport, LatePollsCostNoCapacity) {
  const double ratio = all_to_all(kRate, nanoseconds(0), std::chrono::microseconds(500), 5);
  EXPECT_GE(ratio, 1.0);
  EXPECT_LE(ratio, 1.03);
}

TEST(ShapedTransport, TheDirectionsOfALinkAreIndependent) {
  Net net(2, {kRate, nanoseconds(0)});
  for (int i = 0; i < 10; ++i) {
    net.at(0).send(rank_at(1), 500'000);
    net.at(1).send(rank_at(0), 500'000);
  }
  net.run_until_received(20);
  EXPECT_NEAR(net.seconds(), 10 * 500'064 / kRate, 1e-4);
}

TEST(ShapedTransport, SeveralSendersShareOneIngress) {
  Net net(4, {kRate, nanoseconds(0)});
  for (std::size_t from = 1; from < 4; ++from) {
    net.at(from).send(rank_at(0), 2'000'000);
  }
  net.run_until_received(3);
  EXPECT_GE(net.seconds(), 6'000'000 / kRate);
  EXPECT_LE(net.seconds(), 6'000'000 / kRate * 1.01);
}

TEST(ShapedTransport, SmallerPriorityLeavesFirst) {
  Net net(2, {kRate, nanoseconds(0)});
  for (std::uint32_t i = 0; i < 6; ++i) {
    net.at(0).send(rank_at(1), 100'000, 6 - i);
  }
  net.run_until_received(6);
  // The first was the only one accepted when the link became free; all others wait for it or
  // overtake it.
  const auto& order = net.at(1).received_from(rank_at(0));
  EXPECT_EQ(std::vector<std::uint64_t>(order.begin(), order.begin() + 4),
            (std::vector<std::uint64_t>{5, 4, 3, 2}));
}

TEST(ShapedTransport, AnUrgentMessageOvertakesALongOne) {
  Net net(2, {kRate, nanoseconds(0)});
  net.at(0).send(rank_at(1), 10'000'000, 9);
  net.pump();
  while (net.seconds() < 0.010) {
    ASSERT_TRUE(net.step());
    net.pump();
  }
  net.at(0).send(rank_at(1), 1000, 1);
  net.run_until_received(1);
  EXPECT_EQ(net.at(1).received_from(rank_at(0)).front(), 1U);
  EXPECT_LE(net.seconds(), 0.0105);  // 160 ms is what the long one takes
  net.run_until_received(2);
  EXPECT_NEAR(net.seconds(), 10'001'128 / kRate, 1e-4);
}

TEST(ShapedTransport, RefusesALinkThatCannotBe) {
  EXPECT_EQ(make_shaped_transport(nullptr, {}).error().code(), StatusCode::kInvalidArgument);
  auto inner = make_inproc_transports(1).value();
  EXPECT_EQ(make_shaped_transport(std::move(inner[0]), {-1.0, {}}).error().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace stretto::transport

// SPDX-License-Identifier: Apache-2.0
// Strangers at the socket by which ranks of one host hand their memory over, too few descriptors,
// wake-ups that come late, and ranks that share a core.
#include "exchange/shared/host.hpp"

#include "base/byte_order.hpp"
#include "exchange/shared/descriptor_test_support.hpp"
#include "tests/threads_as_ranks.hpp"

#include "stretto/group.hpp"

#include <array>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

namespace stretto::exchange {
namespace {

using Address = DescriptorSocket::Address;
using Note = DescriptorSocket::Note;
using Came = DescriptorSocket::Came;

Deadline soon() {
  return Deadline::after(std::chrono::seconds(20));
}

struct Forged {
  std::vector<std::byte> bytes;
  std::size_t descriptors = 0;
};

/// Letters to rank 0 of two, which awaits one descriptor of rank 1 in round 1: none will do.
std::vector<Forged> forged_letters(const Address& to) {
  const Note good{to.secret, 1, 1};
  auto longer = bytes_of(good);
  longer.push_back(std::byte{0});
  auto shorter = bytes_of(good);
  shorter.pop_back();
  return {
      {{}, 0},
      {std::vector<std::byte>(3000, std::byte{0x5a}), 3},
      {bytes_of({{1, 2}, 1, 1}), 1},     // another secret
      {bytes_of({to.secret, 1, 7}), 1},  // another round
      {bytes_of({to.secret, 9, 1}), 1},  // a rank that does not exist
      {bytes_of({to.secret, 0, 1}), 1},  // the receiver itself
      {bytes_of(good), 0},               // nothing with it
      {bytes_of(good), 2},               // too many with it
      {longer, 1},
      {shorter, 1},
  };
}

std::size_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

TEST(DescriptorSocket, ForgedLettersAreRefusedCountedAndTheirDescriptorsClosed) {
  auto socket = DescriptorSocket::open(0).value();
  const auto sender = DescriptorSocket::open(1).value();
  const FileDescriptor file(::eventfd(0, EFD_CLOEXEC));
  const std::array<std::size_t, 2> files_of{0, 1};
  const std::array<int, 1> true_files{file.get()};
  const std::size_t before = open_files();
  std::uint64_t refused = 0;
  for (const Forged& forged : forged_letters(socket.address())) {
    DescriptorSocket::Letter letter;
    ASSERT_TRUE(send_as_a_stranger(socket.address(), forged.bytes, forged.descriptors));
    ASSERT_EQ(socket.receive({1, files_of}, letter).value(), Came::kRefused);
    EXPECT_EQ(socket.refused(), ++refused);
    EXPECT_TRUE(letter.files.empty());
    EXPECT_EQ(open_files(), before);
  }
  DescriptorSocket::Letter letter;
  EXPECT_EQ(socket.receive({1, files_of}, letter).value(), Came::kNothing);
  EXPECT_TRUE(sender.send(socket.address(), 1, 1, true_files).value());
  EXPECT_EQ(socket.receive({1, files_of}, letter).value(), Came::kLetter);
  EXPECT_EQ(letter.sender, 1U);
  EXPECT_EQ(letter.files.size(), 1U);
  EXPECT_EQ(socket.refused(), refused);
}

/// A control plane at which a stranger listens: as soon as ranks know each other's names, it writes
/// to all of them.
class Overheard final : public spi::ControlPlane {
 public:
  explicit Overheard(spi::ControlPlane& real) : real_(real) {}

  Rank rank() const noexcept override { return real_.rank(); }
  std::size_t size() const noexcept override { return real_.size(); }
  Status health() const override { return real_.health(); }
  int descriptor() const noexcept override { return real_.descriptor(); }
  void abort(const Status& reason) noexcept override { real_.abort(reason); }
  void leave() noexcept override { real_.leave(); }

  Result<std::vector<spi::Bytes>> all_gather(std::string_view what,
                                             std::span<const std::byte> mine,
                                             Deadline deadline) override {
    auto blobs = real_.all_gather(what, mine, deadline);
    if (blobs && what == "names on one host") {
      ByteReader reader((*blobs)[1 - index_of(rank())]);
      Address other;
      other.name = reader.get_text();
      for (std::size_t i = 0; i < kLetters; ++i) {
        EXPECT_TRUE(send_as_a_stranger(other, std::vector<std::byte>(8 * i), i % 3));
      }
    }
    return blobs;
  }

  static constexpr std::size_t kLetters = 8;

 private:
  spi::ControlPlane& real_;
};

TEST(Host, RanksMeetThoughStrangersWriteToThem) {
  testing::run_ranks(2, [](const std::shared_ptr<Group>& group) {
    Overheard control(group->control());
    const auto host = Host::meet(control, 2, soon());
    ASSERT_TRUE(host.has_value()) << host.error().to_string();
    // A rank's own letter comes behind those that were there before it.
    EXPECT_EQ((*host)->refused(), Overheard::kLetters);
    auto memory = Mapping::create(64, Mapping::Touch::kNow).value();
    memory.data()[0] = std::byte{static_cast<unsigned char>(10 + (*host)->rank())};
    const std::array<const Mapping*, 1> mine{&memory};
    const auto all = (*host)->share({}, mine, Mapping::Touch::kNow, soon());
    ASSERT_TRUE(all.has_value()) << all.error().to_string();
    const std::size_t other = 1 - (*host)->rank();
    EXPECT_EQ((*all)[other].memory.at(0).data()[0],
              std::byte{static_cast<unsigned char>(10 + other)});
    // Nobody unmaps before all have read.
    ASSERT_TRUE(control.all_gather("read", {}, soon()).has_value());
  });
}

using Groups = std::vector<std::shared_ptr<Group>>;
using Hosts = std::vector<Result<std::unique_ptr<Host>>>;

Hosts meet(const Groups& groups) {
  Hosts hosts(groups.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < groups.size(); ++rank) {
    threads.emplace_back([&, rank] {
      hosts[rank] = Host::meet(
          groups[rank]->control(), groups.size(), Deadline::after(std::chrono::seconds(30)));
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return hosts;
}

bool is_readable(int descriptor) {
  pollfd entry{descriptor, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

TEST(Host, AWakeUpBetweenArmAndDisarmIsHeardOnce) {
  const auto groups = Group::in_process(1);
  const auto hosts = meet(groups);
  Host& host = **hosts[0];
  host.wake(0);
  EXPECT_FALSE(is_readable(host.descriptor())) << "nobody sleeps";
  host.arm();
  host.wake(0);
  EXPECT_TRUE(is_readable(host.descriptor()));
  host.disarm();
  EXPECT_FALSE(is_readable(host.descriptor()));
}

// The waker takes the flag down, is held up, and rings when the sleeper is awake for another
// reason.
TEST(Host, ARingThatComesLateEndsOneSleepAndNoOther) {
  const auto groups = Group::in_process(1);
  const auto hosts = meet(groups);
  Host& host = **hosts[0];
  host.arm();
  host.disarm();
  const std::uint64_t one = 1;
  ASSERT_EQ(::write(host.descriptor(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  host.arm();
  host.disarm();
  EXPECT_FALSE(is_readable(host.descriptor()));
}

/// The cores that this thread may run on, as it was when this was made; so again afterwards.
class Cores {
 public:
  Cores() { ::sched_getaffinity(0, sizeof before_, &before_); }
  ~Cores() { restore(); }
  void restore() const { ::sched_setaffinity(0, sizeof before_, &before_); }
  int count() const { return CPU_COUNT(&before_); }
  /// Runs on the first of them from here on, and only there.
  void stay_on_first() const {
    int first = 0;
    while (!CPU_ISSET(first, &before_)) {
      ++first;
    }
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(first, &only);
    ASSERT_EQ(::sched_setaffinity(0, sizeof only, &only), 0);
  }
  bool are_as_before() const {
    cpu_set_t now;
    return ::sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, &before_);
  }

 private:
  cpu_set_t before_{};
};

TEST(Host, OfTwoRanksOnACoreTheHigherMovesWhereItMay) {
  const auto groups = Group::in_process(2);
  const auto hosts = meet(groups);
  Host& zero = **hosts[0];
  Host& one = **hosts[1];
  const Cores cores;
  const TimePoint start = Clock::now();
  EXPECT_FALSE(one.leave_shared_core(start)) << "nobody has shown a core";
  cores.stay_on_first();
  zero.show_core();
  one.show_core();
  EXPECT_FALSE(zero.leave_shared_core(start)) << "the lower stays";
  EXPECT_FALSE(one.leave_shared_core(start)) << "it may run on no other";
  const TimePoint later = start + std::chrono::milliseconds(6);
  // Between these two lines the system may move the thread, but not at once and not every time.
  bool moved = false;
  for (int i = 0; i < 100 && !moved; ++i) {
    cores.stay_on_first();
    cores.restore();
    moved = one.leave_shared_core(later);
  }
  EXPECT_EQ(moved, cores.count() > 1);
  EXPECT_TRUE(cores.are_as_before());
  cores.stay_on_first();
  EXPECT_FALSE(one.leave_shared_core(later)) << "too soon again";
}

/// Lowers the limit of open files for a while.
class OpenFiles {
 public:
  OpenFiles() { ::getrlimit(RLIMIT_NOFILE, &before_); }
  ~OpenFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  void limit_to(rlim_t most) const {
    const rlimit limit{most, before_.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

 private:
  rlimit before_{};
};

TEST(Host, TooFewDescriptorsAreAnErrorThatSaysSo) {
  constexpr std::size_t kRanks = 5;
  const auto groups = Group::in_process(kRanks);
  const auto free = static_cast<rlim_t>(::dup(0));
  ::close(static_cast<int>(free));
  const OpenFiles files;
  bool truncated = false;
  for (rlim_t more = 0; more < 200; ++more) {
    SCOPED_TRACE(std::to_string(more) + " descriptors");
    files.limit_to(free + more);
    bool met = true;
    for (const auto& host : meet(groups)) {
      if (host.has_value()) {
        continue;
      }
      met = false;
      const std::string text(host.error().message());
      EXPECT_EQ(host.error().code(), StatusCode::kUnsupported) << text;
      ASSERT_NE(text.find("(ulimit -n)"), std::string::npos) << text;
      truncated = truncated || text.find("no room for 1 descriptors of rank") != std::string::npos;
    }
    if (met) {
      EXPECT_GT(more, 0U);
      EXPECT_TRUE(truncated) << "no limit let a rank come as far as the others' descriptors";
      return;
    }
  }
  FAIL() << "the ranks never met";
}

}  // namespace
}  // namespace stretto::exchange

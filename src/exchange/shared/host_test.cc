// SPDX-License-Identifier: Apache-2.0
// Strangers at the socket by which ranks of one host hand their memory over.
#include "exchange/shared/host.hpp"

#include "base/byte_order.hpp"
#include "exchange/shared/descriptor_test_support.hpp"
#include "tests/threads_as_ranks.hpp"

#include <array>
#include <chrono>
#include <filesystem>
#include <iterator>

#include <gtest/gtest.h>

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
    EXPECT_EQ((*all)[other].memory.at(0).data()[0], std::byte{static_cast<unsigned char>(10 + other)});
    // Nobody unmaps before all have read.
    ASSERT_TRUE(control.all_gather("read", {}, soon()).has_value());
  });
}

}  // namespace
}  // namespace stretto::exchange

// SPDX-License-Identifier: Apache-2.0
#include "exchange/shared/host.hpp"

#include "base/byte_order.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace stretto::exchange {
namespace {

constexpr std::size_t kMaxDescriptors = 64;  // of one rank in one round

/// What goes with the descriptors of one rank.
struct Note {
  std::array<std::uint64_t, 2> secret{};  ///< of the receiver
  std::uint32_t sender = 0;
  std::uint32_t round = 0;
};

Status system_error(const std::string& what) {
  return {StatusCode::kUnavailable, what + ": " + std::strerror(errno)};
}

std::uint64_t draw_number() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

struct SocketAddress {
  sockaddr_un address{};
  socklen_t length = 0;
};

/// A name in the abstract name space: it begins with a zero and leaves no file.
SocketAddress abstract_address(const std::string& name) {
  SocketAddress made;
  made.address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof made.address.sun_path - 1);
  std::memcpy(made.address.sun_path + 1, name.data(), length);
  made.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return made;
}

std::string name_of(std::size_t rank) {
  return "rank " + std::to_string(rank);
}

std::atomic<std::uint32_t>& flag_in(const Mapping& mapping) {
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(mapping.data());
}
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace

Result<std::unique_ptr<Host>> Host::meet(spi::ControlPlane& control,
                                         std::size_t local_size,
                                         Deadline deadline) {
  auto host = std::unique_ptr<Host>(new Host(control));
  Status ready = host->open_socket();
  if (local_size != control.size()) {
    ready = {StatusCode::kUnsupported,
             name_of(host->rank()) + " is one of " + std::to_string(local_size) +
                 " ranks on its host, of " + std::to_string(control.size()) +
                 " in all: not all are on one host (LOCAL_WORLD_SIZE)"};
  }
  STRETTO_TRY(host->agree(ready, deadline));
  const Address& own = host->addresses_[host->rank()];
  ByteWriter writer;
  writer.put_text(own.name);
  writer.put(own.secret);
  STRETTO_TRY_ASSIGN(const auto blobs,
                     control.all_gather("names on one host", writer.bytes(), deadline));
  for (std::size_t rank = 0; rank < control.size(); ++rank) {
    ByteReader reader(blobs[rank]);
    host->addresses_[rank].name = reader.get_text();
    host->addresses_[rank].secret = reader.get<std::array<std::uint64_t, 2>>();
  }
  STRETTO_TRY(host->share_bells(deadline));
  return host;
}

Status Host::open_socket() {
  addresses_.resize(size());
  bells_.resize(size());
  Address& own = addresses_[rank()];
  own.name = "stretto-" + std::to_string(draw_number()) + "-" + std::to_string(rank());
  own.secret = {draw_number(), draw_number()};
  socket_ = FileDescriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  bells_[rank()] = FileDescriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const SocketAddress at = abstract_address(own.name);
  if (!socket_.is_open() || !bells_[rank()].is_open() ||
      ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) != 0) {
    return system_error("cannot open a socket for the ranks of this host");
  }
  return {};
}

Status Host::share_bells(Deadline deadline) {
  auto flag = Mapping::create(sizeof(std::uint32_t), Mapping::Touch::kNow);
  Status ready = flag ? Status() : flag.error();
  flags_.resize(size());
  if (flag) {
    flags_[rank()] = std::move(*flag);
  }
  const std::array<const Mapping*, 1> mine{&flags_[rank()]};
  STRETTO_TRY_ASSIGN(auto flags, share(ready, mine, Mapping::Touch::kNow, deadline));
  const std::array<int, 1> bell{bells_[rank()].get()};
  const std::vector<std::size_t> one_each(size(), 1);
  ++round_;
  auto bells = swap_descriptors(bell, one_each, deadline);
  STRETTO_TRY(agree(bells ? Status() : bells.error(), deadline));
  for (std::size_t other = 0; other < size(); ++other) {
    if (other != rank()) {
      flags_[other] = std::move(flags[other][0]);
      bells_[other] = std::move((*bells)[other][0]);
    }
  }
  return {};
}

Status Host::agree(const Status& mine, Deadline deadline) const {
  ByteWriter writer;
  writer.put(static_cast<std::uint8_t>(mine.code()));
  writer.put_text(mine.message());
  STRETTO_TRY_ASSIGN(const auto blobs,
                     control_.all_gather("whether memory is shared", writer.bytes(), deadline));
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    ByteReader reader(blobs[rank]);
    const auto code = reader.get<std::uint8_t>();
    if (!reader.ok() || code != 0) {
      return {StatusCode::kUnsupported,
              name_of(rank) + " cannot share memory with the others: " + reader.get_text()};
    }
  }
  return {};
}

Result<std::vector<std::vector<Mapping>>> Host::share(const Status& ready,
                                                      std::span<const Mapping* const> mine,
                                                      Mapping::Touch touch,
                                                      Deadline deadline) {
  ++round_;
  Status usable = ready;
  if (usable.is_ok() && mine.size() > kMaxDescriptors) {
    usable = {StatusCode::kUnsupported, "more than 64 arenas are shared at once"};
  }
  STRETTO_TRY(agree(usable, deadline));
  ByteWriter writer;
  std::vector<int> descriptors;
  for (const Mapping* mapping : mine) {
    writer.put(static_cast<std::uint64_t>(mapping->size()));
    writer.put(mapping->nonce());
    descriptors.push_back(mapping->descriptor());
  }
  STRETTO_TRY_ASSIGN(const auto blobs,
                     control_.all_gather("shared memory", writer.bytes(), deadline));
  constexpr std::size_t kEntry = 2 * sizeof(std::uint64_t);
  std::vector<std::size_t> expected;
  for (const spi::Bytes& blob : blobs) {
    expected.push_back(blob.size() / kEntry);
  }
  std::vector<std::vector<Mapping>> mapped(size());
  auto received = swap_descriptors(descriptors, expected, deadline);
  Status opened = received ? Status() : received.error();
  for (std::size_t other = 0; other < size() && opened.is_ok(); ++other) {
    ByteReader reader(blobs[other]);
    for (const FileDescriptor& file : (*received)[other]) {
      const auto bytes = static_cast<std::size_t>(reader.get<std::uint64_t>());
      auto mapping = Mapping::open(file, bytes, reader.get<std::uint64_t>(), touch);
      if (!mapping) {
        opened = mapping.error();
        break;
      }
      mapped[other].push_back(std::move(*mapping));
    }
  }
  STRETTO_TRY(agree(opened, deadline));
  return mapped;
}

Result<std::vector<std::vector<FileDescriptor>>> Host::swap_descriptors(
    std::span<const int> mine, std::span<const std::size_t> expected, Deadline deadline) {
  std::vector<std::vector<FileDescriptor>> got(size());
  std::vector<std::size_t> to_send;
  std::size_t to_come = 0;
  for (std::size_t other = 0; other < size(); ++other) {
    if (other != rank()) {
      if (!mine.empty()) {
        to_send.push_back(other);
      }
      to_come += expected[other] > 0 ? 1 : 0;
    }
  }
  while (!to_send.empty() || to_come > 0) {
    STRETTO_TRY(control_.health());
    if (deadline.passed()) {
      return fail(StatusCode::kDeadlineExceeded, "descriptors of other ranks did not come");
    }
    std::vector<std::size_t> blocked;
    for (const std::size_t other : to_send) {
      STRETTO_TRY_ASSIGN(const bool sent, send_to(other, mine));
      if (!sent) {
        blocked.push_back(other);
      }
    }
    to_send = std::move(blocked);
    while (to_come > 0) {
      STRETTO_TRY_ASSIGN(const bool came, receive(got, expected));
      if (!came) {
        break;
      }
      --to_come;
    }
    if (to_come > 0 || !to_send.empty()) {
      pollfd readable{socket_.get(), POLLIN, 0};
      static_cast<void>(::poll(&readable, 1, to_send.empty() ? 20 : 1));
    }
  }
  return got;
}

Result<bool> Host::send_to(std::size_t rank, std::span<const int> descriptors) const {
  Note note{addresses_[rank].secret, static_cast<std::uint32_t>(this->rank()), round_};
  iovec part{&note, sizeof note};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMaxDescriptors * sizeof(int))> space{};
  SocketAddress to = abstract_address(addresses_[rank].name);
  msghdr message{};
  message.msg_name = &to.address;
  message.msg_namelen = to.length;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
  cmsghdr* control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(descriptors.size_bytes());
  std::memcpy(CMSG_DATA(control), descriptors.data(), descriptors.size_bytes());
  if (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) >= 0) {
    return true;
  }
  if (errno == EAGAIN || errno == EINTR || errno == ETOOMANYREFS) {
    return false;
  }
  return fail(system_error("cannot hand memory to " + name_of(rank)));
}

Result<bool> Host::receive(std::vector<std::vector<FileDescriptor>>& got,
                           std::span<const std::size_t> expected) const {
  while (true) {
    Note note;
    iovec part{&note, sizeof note};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMaxDescriptors * sizeof(int))> space{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = space.data();
    message.msg_controllen = space.size();
    const ssize_t bytes = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (bytes < 0) {
      if (errno == EAGAIN || errno == EINTR) {
        return false;
      }
      return fail(system_error("cannot receive memory of other ranks"));
    }
    std::vector<FileDescriptor> files;  // closed again unless they are taken below
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
          int descriptor = -1;
          std::memcpy(&descriptor, CMSG_DATA(c) + i * sizeof(int), sizeof descriptor);
          files.emplace_back(descriptor);
        }
      }
    }
    const bool ours = bytes == static_cast<ssize_t>(sizeof note) && note.round == round_ &&
                      note.secret == addresses_[rank()].secret && note.sender < size() &&
                      note.sender != rank() && files.size() == expected[note.sender] &&
                      got[note.sender].empty();
    if (ours) {  // anybody on this host may write to the socket: the rest is dropped
      got[note.sender] = std::move(files);
      return true;
    }
  }
}

void Host::arm() noexcept {
  armed_ = true;
  // Both sides exchange the same flag, so one of them comes second and sees what the other did
  // before: either wake() finds the sleeper, or the sleeper's next look finds the work.
  static_cast<void>(flag_in(flags_[rank()]).exchange(1, std::memory_order_acq_rel));
}

void Host::disarm() noexcept {
  if (!armed_) {
    return;
  }
  armed_ = false;
  if (flag_in(flags_[rank()]).exchange(0, std::memory_order_acq_rel) == 0) {
    std::uint64_t count = 0;
    static_cast<void>(::read(bells_[rank()].get(), &count, sizeof count));
  }
}

void Host::wake(std::size_t rank) noexcept {
  // Pairs with the exchange in arm().
  if (flag_in(flags_[rank]).exchange(0, std::memory_order_acq_rel) != 0) {
    const std::uint64_t one = 1;
    static_cast<void>(::write(bells_[rank].get(), &one, sizeof one));
  }
}

}  // namespace stretto::exchange

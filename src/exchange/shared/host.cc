// SPDX-License-Identifier: Apache-2.0
#include "exchange/shared/host.hpp"

#include "base/byte_order.hpp"
#include "base/system_error.hpp"

#include <algorithm>
#include <atomic>
#include <new>
#include <string>
#include <utility>

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>

namespace stretto::exchange {
namespace {

constexpr const char* kRaiseTheLimit = "; raise the limit of open files (ulimit -n)";

std::string name_of(std::size_t rank) {
  return "rank " + std::to_string(rank);
}

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
  const DescriptorSocket::Address& own = host->socket_.address();
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
  STRETTO_TRY_ASSIGN(socket_, DescriptorSocket::open(rank()));
  bells_[rank()] = FileDescriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  return bells_[rank()].is_open() ? Status()
                                  : system_error("cannot open a bell for the ranks of this host");
}

Status Host::share_bells(Deadline deadline) {
  auto page = Mapping::create(sizeof(Signs), Mapping::Touch::kNow);
  Status ready = page ? Status() : page.error();
  signs_.resize(size());
  if (page) {
    signs_[rank()] = std::move(*page);
  }
  const std::array<const Mapping*, 1> mine{&signs_[rank()]};
  STRETTO_TRY_ASSIGN(auto signs, share(ready, mine, Mapping::Touch::kNow, deadline));
  const std::array<int, 1> bell{bells_[rank()].get()};
  const std::vector<std::size_t> one_each(size(), 1);
  ++round_;
  auto bells = swap_descriptors(bell, one_each, deadline);
  STRETTO_TRY(agree(bells ? Status() : bells.error(), deadline));
  for (std::size_t other = 0; other < size(); ++other) {
    if (other != rank()) {
      if (signs[other].memory.size() != 1 || signs[other].memory[0].size() != sizeof(Signs)) {
        return {StatusCode::kCorruptWire, name_of(other) + " is of another version of Stretto"};
      }
      signs_[other] = std::move(signs[other].memory[0]);
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

Result<std::vector<Host::Handed>> Host::share(const Status& ready,
                                              std::span<const Mapping* const> mine,
                                              Mapping::Touch touch,
                                              Deadline deadline,
                                              std::span<const std::uint32_t> gone) {
  ++round_;
  Status usable = ready;
  if (usable.is_ok() && mine.size() > DescriptorSocket::kMostDescriptors) {
    usable = {StatusCode::kUnsupported, "more than 64 arenas are shared at once"};
  }
  STRETTO_TRY(agree(usable, deadline));
  ByteWriter writer;
  writer.put(static_cast<std::uint32_t>(mine.size()));
  std::vector<int> descriptors;
  for (const Mapping* mapping : mine) {
    writer.put(static_cast<std::uint64_t>(mapping->size()));
    writer.put(mapping->nonce());
    descriptors.push_back(mapping->descriptor());
  }
  for (const std::uint32_t number : gone) {
    writer.put(number);
  }
  STRETTO_TRY_ASSIGN(const auto blobs,
                     control_.all_gather("shared memory", writer.bytes(), deadline));
  std::vector<ByteReader> readers(blobs.begin(), blobs.end());
  std::vector<std::size_t> expected;
  for (ByteReader& reader : readers) {
    expected.push_back(reader.get<std::uint32_t>());
  }
  std::vector<Handed> handed(size());
  auto received = swap_descriptors(descriptors, expected, deadline);
  Status opened = received ? Status() : received.error();
  for (std::size_t other = 0; other < size() && opened.is_ok(); ++other) {
    ByteReader& reader = readers[other];
    for (const FileDescriptor& file : (*received)[other]) {
      const auto bytes = static_cast<std::size_t>(reader.get<std::uint64_t>());
      auto mapping = Mapping::open(file, bytes, reader.get<std::uint64_t>(), touch);
      if (!mapping) {
        opened = mapping.error();
        break;
      }
      handed[other].memory.push_back(std::move(*mapping));
    }
    while (other != rank() && opened.is_ok() && !reader.at_end()) {
      handed[other].gone.push_back(reader.get<std::uint32_t>());
    }
  }
  STRETTO_TRY(agree(opened, deadline));
  return handed;
}

Result<std::vector<std::vector<FileDescriptor>>> Host::swap_descriptors(
    std::span<const int> mine, std::span<const std::size_t> expected, Deadline deadline) {
  std::vector<std::vector<FileDescriptor>> got(size());
  std::vector<std::size_t> to_send;
  std::vector<std::size_t> to_come(expected.begin(), expected.end());
  to_come[rank()] = 0;
  for (std::size_t other = 0; other < size() && !mine.empty(); ++other) {
    if (other != rank()) {
      to_send.push_back(other);
    }
  }
  const auto all_came = [&to_come] {
    return std::all_of(to_come.begin(), to_come.end(), [](auto files) { return files == 0; });
  };
  while (!to_send.empty() || !all_came()) {
    STRETTO_TRY(control_.health());
    if (deadline.passed()) {
      std::string missing;
      for (std::size_t other = 0; other < size(); ++other) {
        if (to_come[other] > 0) {
          missing += (missing.empty() ? "" : ", ") + name_of(other);
        }
      }
      return fail(StatusCode::kDeadlineExceeded,
                  missing.empty()
                      ? "the others took no descriptors"
                      : "no descriptors came from " + missing +
                            " (refused messages of strangers: " + std::to_string(refused()) + ")");
    }
    std::vector<std::size_t> blocked;
    for (const std::size_t other : to_send) {
      STRETTO_TRY_ASSIGN(const bool sent, send_to(other, mine));
      if (!sent) {
        blocked.push_back(other);
      }
    }
    to_send = std::move(blocked);
    // One letter a turn: strangers who never stop writing do not keep this rank from its deadline.
    DescriptorSocket::Letter letter;
    STRETTO_TRY_ASSIGN(const auto came, socket_.receive({round_, to_come}, letter));
    if (came == DescriptorSocket::Came::kLetter) {
      to_come[letter.sender] = 0;
      got[letter.sender] = std::move(letter.files);
    } else if (came == DescriptorSocket::Came::kNothing && (!to_send.empty() || !all_came())) {
      pollfd readable{socket_.descriptor(), POLLIN, 0};
      static_cast<void>(::poll(&readable, 1, to_send.empty() ? 20 : 1));
    }
  }
  for (std::size_t other = 0; other < size(); ++other) {
    if (other != rank() && got[other].size() < expected[other]) {
      return fail(StatusCode::kUnavailable,
                  "it has no room for " + std::to_string(expected[other]) + " descriptors of " +
                      name_of(other) + kRaiseTheLimit);
    }
  }
  return got;
}

Result<bool> Host::send_to(std::size_t rank, std::span<const int> descriptors) const {
  auto sent =
      socket_.send(addresses_[rank], static_cast<std::uint32_t>(this->rank()), round_, descriptors);
  if (!sent) {
    return fail(
        sent.error().code(),
        "cannot hand memory to " + name_of(rank) + ": " + std::string(sent.error().message()));
  }
  return sent;
}

void Host::arm() noexcept {
  armed_ = true;
  // Both sides exchange the same flag, so one of them comes second and sees what the other did
  // before: either wake() finds the sleeper, or the sleeper's next look finds the work.
  static_cast<void>(signs_of(rank()).sleeps.exchange(1, std::memory_order_acq_rel));
}

void Host::disarm() noexcept {
  if (!armed_) {
    return;
  }
  armed_ = false;
  static_cast<void>(signs_of(rank()).sleeps.exchange(0, std::memory_order_acq_rel));
  // Whatever the flag says: a waker that was held up behind taking it down, while this rank woke
  // for another reason, rings now or later, and what it leaves would end every later sleep.
  std::uint64_t count = 0;
  static_cast<void>(::read(bells_[rank()].get(), &count, sizeof count));
}

void Host::wake(std::size_t rank) noexcept {
  // Pairs with the exchange in arm().
  if (signs_of(rank).sleeps.exchange(0, std::memory_order_acq_rel) != 0) {
    const std::uint64_t one = 1;
    static_cast<void>(::write(bells_[rank].get(), &one, sizeof one));
  }
}

Host::Signs& Host::signs_of(std::size_t rank) const noexcept {
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
  return *std::launder(reinterpret_cast<Signs*>(signs_[rank].data()));
}

void Host::show_core() noexcept {
  signs_of(rank()).core.store(static_cast<std::uint32_t>(::sched_getcpu()) + 1,
                              std::memory_order_relaxed);
}

/// Two ranks that wait for each other on one core look busy and fresh to the system, which leaves
/// them there for a tenth of a second and more though another core is free (virtual machines: an
/// idle core looks taken to who places a woken thread).  Together they are half as fast.
bool Host::leave_shared_core(TimePoint now) noexcept {
  constexpr std::chrono::milliseconds kBetweenMoves{5};
  const auto here = static_cast<std::uint32_t>(::sched_getcpu()) + 1;
  bool shared = false;
  for (std::size_t lower = 0; lower < rank() && !shared; ++lower) {
    shared = signs_of(lower).core.load(std::memory_order_relaxed) == here;
  }
  cpu_set_t allowed;
  if (!shared || now < next_move_ || ::sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    return false;
  }
  next_move_ = now + kBetweenMoves;
  cpu_set_t free = allowed;
  for (std::size_t other = 0; other < size(); ++other) {
    const auto core = signs_of(other).core.load(std::memory_order_relaxed);
    if (core != 0) {
      CPU_CLR(core - 1, &free);
    }
  }
  if (CPU_COUNT(&free) == 0 || ::sched_setaffinity(0, sizeof free, &free) != 0) {
    return false;
  }
  static_cast<void>(::sched_setaffinity(0, sizeof allowed, &allowed));
  return true;
}

}  // namespace stretto::exchange

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"
#include "base/mutex.hpp"

#include "stretto/spi/transport.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace stretto::transport {

/// What one rank puts into another's mailbox.
struct Letter {
  enum class Kind : std::uint8_t { kAnnounced, kSent, kLost };
  Kind kind = Kind::kAnnounced;
  Rank from{0};
  std::uint64_t token = 0;
  spi::MessageHeader header;
  const std::byte* payload = nullptr;  ///< in the sender's memory; read under Lane::mutex only
};

/// The letters to one rank, and the descriptor that says that there are some.
///
/// Threading: thread-safe; take and settle are for the owner.
class Mailbox {
 public:
  Status open();
  int descriptor() const noexcept { return event_.get(); }

  /// Puts a letter in; it is dropped if the owner is gone.
  void put(const Letter& letter);
  /// Exchanges the letters for `into`, which is empty.
  void take(std::vector<Letter>& into);
  /// Makes the descriptor readable if there are letters or the owner has work; else silent.
  void settle(bool owner_has_work);
  /// Drops what is there and all that comes.
  void shut();

 private:
  void signal() STRETTO_REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<Letter> letters_ STRETTO_GUARDED_BY(mutex_);
  bool signalled_ STRETTO_GUARDED_BY(mutex_) = false;
  bool shut_ STRETTO_GUARDED_BY(mutex_) = false;
  FileDescriptor event_;
};

/// The way from one rank to another: lets a receiver read the sender's memory only while the sender
/// is there.
///
/// Threading: thread-safe.
struct Lane {
  Mutex mutex;
  bool accepting STRETTO_GUARDED_BY(mutex) = true;     ///< false: the sender leaves
  bool present STRETTO_GUARDED_BY(mutex) = true;       ///< false: its memory may be gone
  std::size_t accepted STRETTO_GUARDED_BY(mutex) = 0;  ///< messages that move
};

/// What the ranks of a group share.
///
/// Threading: thread-safe.
class Hub {
 public:
  static Result<std::shared_ptr<Hub>> make(std::size_t size);

  std::size_t size() const noexcept { return mailboxes_.size(); }
  Mailbox& mailbox(Rank rank) noexcept { return mailboxes_[index_of(rank)]; }
  Lane& lane(Rank from, Rank to) noexcept { return lanes_[index_of(from) * size() + index_of(to)]; }

 private:
  explicit Hub(std::size_t size) : mailboxes_(size), lanes_(size * size) {}

  std::vector<Mailbox> mailboxes_;
  std::vector<Lane> lanes_;
};

}  // namespace stretto::transport

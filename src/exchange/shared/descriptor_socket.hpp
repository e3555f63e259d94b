// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"

#include "stretto/status.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace stretto::exchange {

/// The socket by which ranks of one host hand descriptors to each other.
///
/// Its name is in the abstract name space: it leaves no file, and every process of the host may
/// write to it.  So a letter counts only if it holds the secret that this rank gave to the others
/// over the control connections, and is the one that is awaited.  Everything else is refused,
/// counted, and the descriptors that came with it are closed.
///
/// Threading: thread-compatible.        Blocking: never.
class DescriptorSocket {
 public:
  /// Descriptors in one letter.
  static constexpr std::size_t kMostDescriptors = 64;

  struct Address {
    std::string name;
    std::array<std::uint64_t, 2> secret{};
  };
  /// What the letter with descriptors says, in this order and without gaps.
  struct Note {
    std::array<std::uint64_t, 2> secret{};  ///< of the receiver
    std::uint32_t sender = 0;
    std::uint32_t round = 0;
  };
  /// Which letters would do.
  struct Awaited {
    std::uint32_t round = 0;
    std::span<const std::size_t> descriptors;  ///< by sender; 0: nothing is to come from it
  };
  struct Letter {
    std::size_t sender = 0;
    /// Fewer than awaited where this process may open no more: the system leaves out the rest.
    std::vector<FileDescriptor> files;
  };
  enum class Came : std::uint8_t {
    kNothing,  ///< there is no letter now
    kRefused,  ///< one that is not awaited
    kLetter,
  };

  DescriptorSocket() = default;
  /// Binds to a name of its own.  Errors: kUnavailable.
  static Result<DescriptorSocket> open(std::size_t rank);

  /// What a sender must know.
  const Address& address() const noexcept { return address_; }
  /// Readable when a letter is there.
  int descriptor() const noexcept { return socket_.get(); }

  /// False if the system does not take it now: try again.  Errors: kUnavailable.
  Result<bool> send(const Address& to,
                    std::uint32_t sender,
                    std::uint32_t round,
                    std::span<const int> descriptors) const;
  /// Takes one letter out; `letter` is set if it is the awaited one.  Errors: kUnavailable.
  Result<Came> receive(const Awaited& awaited, Letter& letter);
  /// Letters that were not awaited.
  std::uint64_t refused() const noexcept { return refused_; }

 private:
  FileDescriptor socket_;
  Address address_;
  std::uint64_t refused_ = 0;
};

}  // namespace stretto::exchange

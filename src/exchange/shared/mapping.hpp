// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"

#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace stretto::exchange {

/// Memory without a name that other processes of this host can map: made here, or received.
///
/// A page in front holds a number by which a receiver makes sure that it reads what the sender
/// wrote. The size is sealed, so that no peer can take pages away under a reader.
///
/// Threading: immutable; the memory is the user's.
/// Ownership: unmapped with the object; gone with the last process that maps it, however it ends.
class Mapping {
 public:
  enum class Touch : std::uint8_t {
    kNow,    ///< the pages are there when create or open returns
    kLater,  ///< each page comes with its first use
  };

  Mapping() noexcept = default;
  Mapping(Mapping&& other) noexcept
      : file_(std::move(other.file_)),
        base_(std::exchange(other.base_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        nonce_(other.nonce_) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping() { unmap(); }

  /// Makes zeroed memory.  Errors: kUnavailable.
  static Result<Mapping> create(std::size_t bytes, Touch touch);
  /// Maps what a peer made.  Errors: kUnavailable; kCorruptWire if it is not what was announced.
  static Result<Mapping> open(const FileDescriptor& file,
                              std::size_t bytes,
                              std::uint64_t nonce,
                              Touch touch);

  /// Behind the page with the number; aligned to a page.
  std::byte* data() const noexcept { return base_ == nullptr ? nullptr : base_ + kHeaderBytes; }
  std::size_t size() const noexcept { return size_; }
  /// Null where so many bytes do not lie within it.
  std::byte* at(std::uint64_t offset, std::size_t bytes) const noexcept {
    return offset > size_ || bytes > size_ - offset ? nullptr : data() + offset;
  }
  std::uint64_t nonce() const noexcept { return nonce_; }
  /// To hand over; -1 for what was received.
  int descriptor() const noexcept { return file_.get(); }

 private:
  static constexpr std::size_t kHeaderBytes = 4096;

  Status map(int descriptor, std::size_t bytes, Touch touch);
  void unmap() noexcept;

  FileDescriptor file_;
  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t nonce_ = 0;
};

}  // namespace stretto::exchange

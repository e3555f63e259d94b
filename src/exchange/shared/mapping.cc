// SPDX-License-Identifier: Apache-2.0
#include "exchange/shared/mapping.hpp"

#include "base/random.hpp"
#include "base/system_error.hpp"

#include <cstring>
#include <limits>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

namespace stretto::exchange {

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    unmap();
    file_ = std::move(other.file_);
    base_ = std::exchange(other.base_, nullptr);
    size_ = std::exchange(other.size_, 0);
    nonce_ = other.nonce_;
  }
  return *this;
}

Result<Mapping> Mapping::create(std::size_t bytes, Touch touch) {
  Mapping made;
  made.file_ = FileDescriptor(::memfd_create("stretto", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made.file_.is_open()) {
    return fail(system_error("cannot make shared memory"));
  }
  constexpr auto kLargest = static_cast<std::size_t>(std::numeric_limits<off_t>::max());
  if (bytes > kLargest - kHeaderBytes) {
    return fail(StatusCode::kUnavailable,
                "cannot make " + std::to_string(bytes) +
                    " bytes of shared memory: no file holds so "
                    "many");
  }
  if (::ftruncate(made.file_.get(), static_cast<off_t>(bytes + kHeaderBytes)) != 0) {
    return fail(system_error("cannot make " + std::to_string(bytes) + " bytes of shared memory"));
  }
  if (::fcntl(made.file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return fail(system_error("cannot seal shared memory"));
  }
  if (touch == Touch::kNow &&
      ::fallocate(made.file_.get(), 0, 0, static_cast<off_t>(bytes + kHeaderBytes)) != 0) {
    return fail(system_error("the host refused " + std::to_string(bytes) +
                             " bytes of shared memory; free some, or train a smaller model"));
  }
  STRETTO_TRY(made.map(made.file_.get(), bytes, touch));
  made.nonce_ = random_number();
  std::memcpy(made.base_, &made.nonce_, sizeof made.nonce_);
  return made;
}

Result<Mapping> Mapping::open(const FileDescriptor& file,
                              std::size_t bytes,
                              std::uint64_t nonce,
                              Touch touch) {
  struct stat about {};
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(file.get(), &about) != 0 ||
      static_cast<std::size_t>(about.st_size) != bytes + kHeaderBytes) {
    return fail(StatusCode::kCorruptWire, "shared memory is not of the announced kind and size");
  }
  Mapping opened;
  STRETTO_TRY(opened.map(file.get(), bytes, touch));
  std::memcpy(&opened.nonce_, opened.base_, sizeof opened.nonce_);
  if (opened.nonce_ != nonce) {
    return fail(StatusCode::kCorruptWire, "shared memory does not hold the announced number");
  }
  return opened;
}

Status Mapping::map(int descriptor, std::size_t bytes, Touch touch) {
  const int flags = MAP_SHARED | (touch == Touch::kNow ? MAP_POPULATE : 0);
  void* base = ::mmap(nullptr, bytes + kHeaderBytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (base == MAP_FAILED) {  // NOLINT: the system's macro
    return system_error("cannot map " + std::to_string(bytes) + " bytes of shared memory");
  }
  base_ = static_cast<std::byte*>(base);
  size_ = bytes;
  return {};
}

void Mapping::unmap() noexcept {
  if (base_ != nullptr) {
    static_cast<void>(::munmap(base_, size_ + kHeaderBytes));
    base_ = nullptr;
  }
}

}  // namespace stretto::exchange

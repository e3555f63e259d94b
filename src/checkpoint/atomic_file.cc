// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/atomic_file.hpp"

#include "base/fault_point.hpp"

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace stretto::checkpoint {
namespace {

constexpr int kAttempts = 100;

std::string reason(int error) {
  return std::generic_category().message(error);
}

Status cannot(const std::string& what, const std::string& path, int error) {
  std::string text = "cannot " + what + " '" + path + "': " + reason(error);
  if (error == ENOSPC || error == EDQUOT) {
    text += "; the previous file, if any, is unchanged: free some space and save again";
  }
  return {StatusCode::kUnavailable, std::move(text)};
}

std::string folder_of(const std::string& path) {
  const auto slash = path.find_last_of('/');
  if (slash == std::string::npos) {
    return ".";
  }
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

Status write_all(int descriptor, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      return cannot("write", path, errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return Status::ok();
}

AtomicFile::AtomicFile(std::string path, std::string temporary, FileDescriptor descriptor)
    : path_(std::move(path)),
      temporary_(std::move(temporary)),
      descriptor_(std::move(descriptor)) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::move(other.descriptor_)) {}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  struct stat existing {};
  // A rename would replace a device or a pipe by a file, which nobody means.
  if (::stat(path.c_str(), &existing) == 0 && !S_ISREG(existing.st_mode)) {
    return fail(StatusCode::kInvalidArgument, "'" + path + "' is not a regular file");
  }
  // Names beside the final one, until one is free: a process that was killed may have left some.
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::string temporary =
        path + "." + std::to_string(::getpid()) + "-" + std::to_string(attempt) + ".tmp";
    FileDescriptor descriptor(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (descriptor.is_open()) {
      return AtomicFile(path, std::move(temporary), std::move(descriptor));
    }
    if (errno != EEXIST) {
      return fail(cannot("create a file beside", path, errno));
    }
  }
  return fail(cannot("create a file beside", path, EEXIST));
}

Status AtomicFile::write(std::span<const std::byte> bytes) {
  return write_all(descriptor_.get(), bytes, path_);
}

Status AtomicFile::commit() {
  if (::fsync(descriptor_.get()) != 0) {
    return cannot("write", path_, errno);
  }
  if (::close(descriptor_.release()) != 0) {
    return cannot("write", path_, errno);
  }
  fault_point("checkpoint.commit", 0);  // rank 0 writes checkpoints
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return cannot("replace", path_, errno);
  }
  temporary_.clear();
  // The new name lasts only when the folder does.
  const FileDescriptor folder(::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open() || ::fsync(folder.get()) != 0) {
    return cannot("make durable", path_, errno);
  }
  return Status::ok();
}

}  // namespace stretto::checkpoint

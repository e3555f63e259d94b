// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/atomic_file.hpp"

#include "base/fault_point.hpp"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
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

/// Takes what only one process can have, and has until it closes the file or ends.
bool lock(const FileDescriptor& file) {
  return ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
}

/// Whether `name` is what create makes for `base`: base.NUMBER-NUMBER.tmp.
bool is_temporary_of(std::string_view name, std::string_view base) {
  constexpr std::string_view kEnd = ".tmp";
  if (!name.starts_with(base) || !name.ends_with(kEnd) ||
      name.size() <= base.size() + kEnd.size()) {
    return false;
  }
  const auto middle = name.substr(base.size(), name.size() - base.size() - kEnd.size());
  return middle.front() == '.' && middle.find('-') != std::string_view::npos &&
         middle.find_first_not_of("0123456789-", 1) == std::string_view::npos;
}

/// Removes what processes that were killed have left beside `path`: nobody holds its lock.
void remove_orphans(const std::string& path) {
  namespace fs = std::filesystem;
  const std::string base = fs::path(path).filename().string();
  std::error_code error;
  for (fs::directory_iterator at(folder_of(path), error), end; !error && at != end;
       at.increment(error)) {
    if (!is_temporary_of(at->path().filename().string(), base)) {
      continue;
    }
    const FileDescriptor file(::open(at->path().c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (file.is_open() && lock(file)) {
      ::unlink(at->path().c_str());
    }
  }
}

/// Locks what was just created; whether another process came between and removes it.
bool is_taken_for_orphan(const FileDescriptor& file) {
  if (!lock(file)) {
    return errno == EWOULDBLOCK;  // on file systems without locks nobody can come between
  }
  struct stat about {};
  return ::fstat(file.get(), &about) == 0 && about.st_nlink == 0;
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
  remove_orphans(path);
  // Names beside the final one, until one is free.
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::string temporary =
        path + "." + std::to_string(::getpid()) + "-" + std::to_string(attempt) + ".tmp";
    FileDescriptor descriptor(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (descriptor.is_open()) {
      if (is_taken_for_orphan(descriptor)) {
        continue;
      }
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
  const FileDescriptor locked(
      ::fcntl(descriptor_.get(), F_DUPFD_CLOEXEC, 0));  // until the file has its own name
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

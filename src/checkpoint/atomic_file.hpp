// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"

#include "stretto/status.hpp"

#include <cstddef>
#include <span>
#include <string>

namespace stretto::checkpoint {

/// Writes all bytes, however many calls that takes.  `path` is for the error text only.
///
/// Errors: kUnavailable with the system's reason ("no space left on device").
Status write_all(int descriptor, std::span<const std::byte> bytes, const std::string& path);

/// A file that appears under its name whole or not at all.
///
/// It is written beside its final place and moved there by commit; until then, and if anything
/// fails, whatever stood there before is untouched.  An object that was not committed removes what
/// it wrote; what a process that was killed has left, the next create for that name removes.
///
/// Threading: thread-compatible.
class AtomicFile {
 public:
  /// Errors: kUnavailable if the folder does not exist or cannot be written.
  static Result<AtomicFile> create(const std::string& path);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  Status write(std::span<const std::byte> bytes);
  /// Makes the file durable and puts it in its place.  Errors: kUnavailable; the old file stands.
  Status commit();

 private:
  AtomicFile(std::string path, std::string temporary, FileDescriptor descriptor);

  std::string path_;
  std::string temporary_;  // empty once there is nothing to remove
  FileDescriptor descriptor_;
};

}  // namespace stretto::checkpoint

// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/atomic_file.hpp"

#include "base/fault_point.hpp"
#include "checkpoint/test_folder.hpp"

#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

namespace stretto::checkpoint {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// Files of this process may not grow beyond `bytes` while this lives: a full disk without a disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    previous_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &previous_);
    const rlimit limit{bytes, previous_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &previous_);
    std::signal(SIGXFSZ, previous_handler_);
  }

 private:
  rlimit previous_{};
  void (*previous_handler_)(int) = SIG_DFL;
};

TEST(AtomicFile, AppearsOnlyAtCommitAndLeavesNothingElse) {
  const TestFolder folder;
  const auto path = folder.path("a");
  {
    auto file = AtomicFile::create(path);
    ASSERT_TRUE(file.has_value()) << file.error().to_string();
    ASSERT_TRUE(file->write(bytes_of("hello ")).is_ok());
    ASSERT_TRUE(file->write(bytes_of("world")).is_ok());
    EXPECT_FALSE(folder.exists("a"));
    ASSERT_TRUE(file->commit().is_ok());
  }
  EXPECT_EQ(folder.read("a"), "hello world");
  EXPECT_EQ(folder.file_count(), 1U);
}

TEST(AtomicFile, KilledBeforeTheRenameTheOldFileStands) {
  const TestFolder folder;
  const auto path = folder.path("a");
  const auto write = [&](std::string_view text) {
    auto file = AtomicFile::create(path);
    return file.has_value() && file->write(bytes_of(text)).is_ok() && file->commit().is_ok();
  };
  ASSERT_TRUE(write("old"));
  EXPECT_EXIT(
      {
        static_cast<void>(arm_fault("checkpoint.commit@1", 0));
        static_cast<void>(write("new"));
        std::_Exit(1);
      },
      ::testing::KilledBySignal(SIGKILL),
      "");
  EXPECT_EQ(folder.read("a"), "old");
  EXPECT_EQ(folder.file_count(), 2U);
  EXPECT_TRUE(write("newer"));
  EXPECT_EQ(folder.read("a"), "newer");
  EXPECT_EQ(folder.file_count(), 1U) << "what the killed process left is still there";
}

TEST(AtomicFile, LeavesAloneWhatOthersWriteAndWhatOnlyLooksSimilar) {
  const TestFolder folder;
  const std::vector<std::string> kept{"a.tmp", "a.1.tmp", "a.1-x.tmp", "b.1-0.tmp", "a.1-0.tmpx"};
  for (const auto& name : kept) {
    folder.write(name, "mine");
  }
  folder.write("a.1-0.tmp", "an orphan");
  auto slow = AtomicFile::create(folder.path("a"));
  ASSERT_TRUE(slow.has_value());
  ASSERT_TRUE(slow->write(bytes_of("slow")).is_ok());
  EXPECT_FALSE(folder.exists("a.1-0.tmp"));
  auto quick = AtomicFile::create(folder.path("a"));
  ASSERT_TRUE(quick.has_value());
  ASSERT_TRUE(quick->commit().is_ok());
  ASSERT_TRUE(slow->commit().is_ok()) << "its file was taken for an orphan";
  EXPECT_EQ(folder.read("a"), "slow");
  EXPECT_EQ(folder.file_count(), 1 + kept.size());
}

TEST(AtomicFile, WithoutCommitTheOldFileStandsAndTheNewOneIsRemoved) {
  const TestFolder folder;
  folder.write("a", "old");
  {
    auto file = AtomicFile::create(folder.path("a"));
    ASSERT_TRUE(file.has_value());
    ASSERT_TRUE(file->write(bytes_of("new")).is_ok());
  }
  EXPECT_EQ(folder.read("a"), "old");
  EXPECT_EQ(folder.file_count(), 1U);
}

TEST(AtomicFile, AFailedWriteLeavesTheOldFile) {
  const TestFolder folder;
  folder.write("a", "old");
  {
    auto file = AtomicFile::create(folder.path("a"));
    ASSERT_TRUE(file.has_value());
    const std::vector<std::byte> much(100'000);
    const FileSizeLimit limit(50'000);
    const Status status = file->write(much);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_NE(status.message().find(folder.path("a")), std::string_view::npos);
  }
  EXPECT_EQ(folder.read("a"), "old");
  EXPECT_EQ(folder.file_count(), 1U);
}

TEST(AtomicFile, AFullDiskIsOneClearLine) {
  const FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.is_open());
  const Status status = write_all(full.get(), bytes_of("x"), "model.safetensors");
  EXPECT_EQ(status.to_string(),
            "unavailable: cannot write 'model.safetensors': No space left on device; the previous "
            "file, if any, is unchanged: free some space and save again");
}

TEST(AtomicFile, RefusesWhatIsNoFileAndAFolderThatIsMissing) {
  const auto device = AtomicFile::create("/dev/null");
  ASSERT_FALSE(device.has_value());
  EXPECT_EQ(device.error().code(), StatusCode::kInvalidArgument);
  const TestFolder folder;
  const auto missing = AtomicFile::create(folder.path("no/such/folder/a"));
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace stretto::checkpoint

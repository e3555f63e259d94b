// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/thread_annotations.hpp"

#include "stretto/types.hpp"

#include <condition_variable>
#include <mutex>

namespace stretto {

/// A std::mutex that clang's thread-safety analysis understands.
///
/// Threading: thread-safe.
class STRETTO_CAPABILITY("mutex") Mutex {
 public:
  void lock() STRETTO_ACQUIRE() { mutex_.lock(); }
  void unlock() STRETTO_RELEASE() { mutex_.unlock(); }

 private:
  friend class ConditionVariable;
  std::mutex mutex_;
};

/// Holds a Mutex for a scope.
class STRETTO_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) STRETTO_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() STRETTO_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// Waits for a condition under a Mutex, never without a deadline.
///
/// Threading: thread-safe.
class ConditionVariable {
 public:
  /// Returns at a notification, at the deadline, or for no reason: test the condition in a loop.
  void wait_until(Mutex& mutex, TimePoint when) STRETTO_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait_until(lock, when);
    lock.release();
  }
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace stretto

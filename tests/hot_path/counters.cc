// SPDX-License-Identifier: Apache-2.0
#include "counters.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <unistd.h>

// The C library's own, under the names by which it exports them.
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* old, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
void __libc_free(void* memory);
}

namespace {

constexpr std::size_t kPlaces = 6;
constexpr int kFrames = 14;

struct Place {
  std::array<void*, kFrames> frames{};
  int count = 0;
};

std::atomic<bool> counting{false};
std::atomic<std::uint64_t> allocations{0};
std::atomic<std::uint64_t> frees{0};
std::atomic<std::uint64_t> locks{0};
std::atomic<std::size_t> noted{0};
std::array<Place, kPlaces> places;
thread_local bool in_note = false;

bool is_control_thread() {
  std::array<char, 16> name{};
  return ::pthread_getname_np(::pthread_self(), name.data(), name.size()) == 0 &&
         std::strcmp(name.data(), "stretto-control") == 0;
}

void note(std::atomic<std::uint64_t>& counter) {
  if (!counting.load(std::memory_order_relaxed) || in_note) {
    return;
  }
  in_note = true;
  if (!is_control_thread()) {
    counter.fetch_add(1, std::memory_order_relaxed);
    const std::size_t at = noted.fetch_add(1, std::memory_order_relaxed);
    if (at < kPlaces) {
      places[at].count = ::backtrace(places[at].frames.data(), kFrames);
    }
  }
  in_note = false;
}

using LockFunction = int (*)(pthread_mutex_t*);
std::atomic<LockFunction> real_lock{nullptr};

}  // namespace

extern "C" {

void* malloc(std::size_t bytes) {
  note(allocations);
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  note(allocations);
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, std::size_t bytes) {
  note(allocations);
  return __libc_realloc(old, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  note(allocations);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  note(allocations);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** into, std::size_t alignment, std::size_t bytes) {
  note(allocations);
  *into = __libc_memalign(alignment, bytes);
  return *into == nullptr ? ENOMEM : 0;
}
void free(void* memory) {
  if (memory != nullptr) {
    note(frees);
  }
  __libc_free(memory);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) {
  LockFunction real = real_lock.load(std::memory_order_acquire);
  if (real == nullptr) {
    real = reinterpret_cast<LockFunction>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
    real_lock.store(real, std::memory_order_release);
  }
  note(locks);
  return real(mutex);
}

}  // extern "C"

namespace stretto::testing {

void start_counting() noexcept {
  std::array<void*, 2> frames{};
  ::backtrace(frames.data(), 2);  // loads what it needs, before anything counts
  allocations = frees = locks = 0;
  noted = 0;
  counting = true;
}

Counters stop_counting() noexcept {
  counting = false;
  return {allocations, frees, locks};
}

void print_places() {
  const std::size_t count = noted < kPlaces ? noted.load() : kPlaces;
  for (std::size_t i = 0; i < count; ++i) {
    std::fprintf(stderr, "place %zu:\n", i);
    ::backtrace_symbols_fd(places[i].frames.data(), places[i].count, STDERR_FILENO);
  }
}

}  // namespace stretto::testing

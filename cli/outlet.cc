// SPDX-License-Identifier: Apache-2.0
#include "outlet.hpp"

#include "base/mutex.hpp"
#include "base/system_error.hpp"

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <deque>
#include <string_view>
#include <thread>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace stretto::cli {
namespace {

constexpr std::size_t kMostBytes = std::size_t{256} << 10;

struct Text {
  int to = 1;
  std::string bytes;
};

void write_all(int to, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(to, bytes.data(), bytes.size());
    if (put > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(put));
    } else if (errno == EAGAIN) {
      pollfd entry{.fd = to, .events = POLLOUT, .revents = 0};
      static_cast<void>(::poll(&entry, 1, 1000));
    } else if (errno != EINTR) {
      return;  // nobody reads any more; the ranks go on
    }
  }
}

}  // namespace

struct Outlet::State {
  FileDescriptor less;  // readable once more has been written
  Mutex mutex;
  ConditionVariable more;
  std::deque<Text> texts STRETTO_GUARDED_BY(mutex);
  std::size_t bytes STRETTO_GUARDED_BY(mutex) = 0;  // of texts, with the one that is being written
  bool ended STRETTO_GUARDED_BY(mutex) = false;

  bool next(Text& text) STRETTO_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    while (texts.empty()) {
      if (ended) {
        return false;
      }
      more.wait_until(mutex, Clock::now() + std::chrono::hours(1));
    }
    text = std::move(texts.front());
    texts.pop_front();
    return true;
  }

  void written(std::size_t size) STRETTO_EXCLUDES(mutex) {
    {
      const MutexLock lock(mutex);
      bytes -= size;
    }
    const std::uint64_t one = 1;
    static_cast<void>(::write(less.get(), &one, sizeof one));
  }
};

Outlet::Outlet(std::shared_ptr<State> state) : state_(std::move(state)) {}

Result<Outlet> Outlet::make() {
  auto state = std::make_shared<State>();
  state->less = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!state->less.is_open()) {
    return fail(system_error("cannot make an eventfd"));
  }
  return Outlet(std::move(state));
}

Outlet::~Outlet() {
  if (state_ != nullptr) {
    const MutexLock lock(state_->mutex);
    state_->ended = true;
    state_->more.notify_one();
  }
}

void Outlet::put(int to, std::string text) {
  if (!std::exchange(started_, true)) {
    std::thread([state = state_] {
      for (Text next; state->next(next);) {
        write_all(next.to, next.bytes);
        state->written(next.bytes.size());
      }
    }).detach();
  }
  const MutexLock lock(state_->mutex);
  state_->bytes += text.size();
  state_->texts.push_back({to, std::move(text)});
  state_->more.notify_one();
}

bool Outlet::has_room() const {
  const MutexLock lock(state_->mutex);
  return state_->bytes < kMostBytes;
}

bool Outlet::is_empty() const {
  const MutexLock lock(state_->mutex);
  return state_->bytes == 0;
}

int Outlet::descriptor() const noexcept {
  return state_->less.get();
}

void Outlet::drain() const noexcept {
  std::uint64_t count = 0;
  static_cast<void>(::read(state_->less.get(), &count, sizeof count));
}

}  // namespace stretto::cli

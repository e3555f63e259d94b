// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/star_plane.hpp"

#include "base/system_error.hpp"

#include <algorithm>
#include <array>

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>

namespace stretto::rendezvous {
namespace {

using std::chrono::milliseconds;

/// How long who leaves waits for the peers to close first.
constexpr milliseconds kFarewell{1'000};

milliseconds beat_for(milliseconds dead_after) {
  return std::clamp(dead_after / 3, milliseconds(5), milliseconds(1000));
}

}  // namespace

Status lost_status(std::size_t rank, const std::string& how) {
  return {StatusCode::kPeerLost, "rank " + std::to_string(rank) + " was lost: " + how};
}

Result<StarPlane::Parts> StarPlane::make_parts() {
  FileDescriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.is_open()) {
    return fail(system_error("cannot make an epoll descriptor"));
  }
  STRETTO_TRY_ASSIGN(Waker waker, Waker::make());
  STRETTO_TRY_ASSIGN(HealthBell bell, HealthBell::make());
  return Parts{std::move(epoll), std::move(waker), std::move(bell)};
}

StarPlane::StarPlane(GroupOptions options, Parts parts)
    : options_(std::move(options)),
      desk_(options_.rank, std::move(parts.waker), std::move(parts.bell)),
      dead_after_(options_.dead_after),
      beat_(beat_for(options_.dead_after)),
      epoll_(std::move(parts.epoll)) {
  watch(desk_.waker().descriptor(), kWakerKey, EPOLLIN);
}

void StarPlane::start() {
  beat_ = beat_for(dead_after_);
  last_turn_ = Clock::now();
  MutexLock lock(stop_mutex_);
  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void StarPlane::stop(Desk::Goodbye goodbye) noexcept {
  desk_.request_stop(goodbye);
  MutexLock lock(stop_mutex_);
  if (thread_.joinable()) {
    thread_.join();
  }
}

Result<std::vector<spi::Bytes>> StarPlane::all_gather(std::string_view what,
                                                      std::span<const std::byte> mine,
                                                      Deadline deadline) {
  return desk_.gather(what, mine, deadline);
}

void StarPlane::abort(const Status& reason) noexcept {
  desk_.request_abort(std::string(reason.message()));
}

void StarPlane::leave() noexcept {
  stop(Desk::Goodbye::kSay);
}

void StarPlane::run() {
  pthread_setname_np(pthread_self(), "stretto-control");
  // The greeting may have read frames that follow it.
  for (auto& [key, connection] : connections_) {
    serve(*connection, Clock::now());
  }
  bool running = true;
  while (running) {
    wait_for_events();
    running = serve_requests();
    on_turn(Clock::now());
    for (const std::uint64_t key : dropped_) {
      if (const auto found = connections_.find(key); found != connections_.end()) {
        keys_.erase(found->second.get());
        wants_out_.erase(key);
        connections_.erase(found);
      }
    }
    dropped_.clear();
  }
  if (said_goodbye_) {
    part_from_peers(Deadline::after(kFarewell));
  }
  connections_.clear();
  keys_.clear();
}

/// A socket that is closed while something unread has come, or comes afterwards, takes back what it
/// has sent and the peer has not received: the results of the last gather.  So the peers, who close
/// when they read the goodbye, close first.
void StarPlane::part_from_peers(Deadline deadline) {
  std::unordered_map<std::uint64_t, bool> finished;
  std::vector<pollfd> waiting;
  do {
    waiting.clear();
    for (auto& [key, connection] : connections_) {
      connection->pump_out();
      if (!connection->wants_out() && !finished[key]) {
        finished[key] = true;
        connection->finish_sending();
      }
      connection->discard_input();
      if (!connection->ended()) {
        const bool wants_out = connection->wants_out();
        waiting.push_back({connection->descriptor(),
                           static_cast<short>(wants_out ? POLLIN | POLLOUT : POLLIN),
                           0});
      }
    }
    if (!waiting.empty()) {
      const auto left = std::chrono::ceil<milliseconds>(deadline.left());
      static_cast<void>(::poll(waiting.data(), waiting.size(), static_cast<int>(left.count())));
    }
  } while (!waiting.empty() && !deadline.passed());
}

bool StarPlane::serve_requests() {
  Requests requests = desk_.take();
  if (requests.gather) {
    on_gather(std::move(*requests.gather));
  }
  if (requests.ask_missing) {
    on_ask_missing(*requests.ask_missing);
  }
  if (requests.abort) {
    on_abort(*requests.abort);
    desk_.abort_sent();
  }
  if (requests.stop && requests.say_goodbye) {
    on_goodbye();
    said_goodbye_ = true;
  }
  return !requests.stop;
}

void StarPlane::wait_for_events() {
  std::array<epoll_event, 64> events;
  desk_.waker().prepare();
  const auto tick = desk_.has_requests() ? milliseconds(0) : std::max(beat_ / 2, milliseconds(1));
  const int ready = ::epoll_wait(
      epoll_.get(), events.data(), static_cast<int>(events.size()), static_cast<int>(tick.count()));
  desk_.waker().finish();
  const TimePoint now = Clock::now();
  forgive_own_sleep(now);
  for (int i = 0; i < ready; ++i) {
    const std::uint64_t key = events[static_cast<std::size_t>(i)].data.u64;
    if (key == kListenerKey) {
      on_accept();
    } else if (const auto found = connections_.find(key); found != connections_.end()) {
      serve(*found->second, now);
    }
  }
}

void StarPlane::forgive_own_sleep(TimePoint now) {
  // If this process itself stood still (SIGSTOP, a suspended host), peers were not silent: it was
  // deaf.  They get their time again; what they sent meanwhile is read before they are judged.
  if (now - last_turn_ > std::max<std::chrono::nanoseconds>(dead_after_ / 2, beat_)) {
    for (auto& [key, connection] : connections_) {
      connection->set_heard(now);
    }
  }
  last_turn_ = now;
}

void StarPlane::serve(Connection& connection, TimePoint now) {
  if (is_dropped(connection)) {
    return;
  }
  connection.pump_in(now);
  while (true) {
    auto frame = connection.reader().next();
    if (!frame) {
      on_end(connection, "it sent " + std::string(frame.error().message()));
      drop(connection);
      return;
    }
    if (!frame->has_value()) {
      break;
    }
    on_frame(connection, **frame);
    if (is_dropped(connection)) {
      return;
    }
  }
  if (connection.ended()) {
    on_end(connection, *connection.ended());
    drop(connection);
    return;
  }
  send(connection, nullptr);
}

bool StarPlane::watch(int descriptor, std::uint64_t key, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0;
}

void StarPlane::unwatch(int descriptor) {
  static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr));
}

Connection& StarPlane::adopt(std::unique_ptr<Connection> connection) {
  const std::uint64_t key = next_key_++;
  Connection& adopted = *connection;
  connections_[key] = std::move(connection);
  keys_[&adopted] = key;
  wants_out_[key] = false;
  watch(adopted.descriptor(), key, EPOLLIN);
  return adopted;
}

void StarPlane::send(Connection& connection, SharedFrame frame) {
  if (frame != nullptr) {
    connection.queue(std::move(frame));
  }
  connection.pump_out();
  const std::uint64_t key = keys_[&connection];
  if (connection.wants_out() != wants_out_[key]) {
    wants_out_[key] = connection.wants_out();
    epoll_event event{};
    event.events = connection.wants_out() ? EPOLLIN | EPOLLOUT : EPOLLIN;
    event.data.u64 = key;
    static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.descriptor(), &event));
  }
}

bool StarPlane::is_dropped(const Connection& connection) const {
  const auto key = keys_.find(&connection);
  return key == keys_.end() ||
         std::find(dropped_.begin(), dropped_.end(), key->second) != dropped_.end();
}

void StarPlane::drop(Connection& connection) {
  if (!is_dropped(connection)) {
    unwatch(connection.descriptor());
    dropped_.push_back(keys_[&connection]);
  }
}

}  // namespace stretto::rendezvous

// SPDX-License-Identifier: Apache-2.0
//
// The control connections form a star around rank 0.  Each rank has one control thread: in rank 0
// it is the Hub, elsewhere a Spoke.  This file is what both have in common.
#pragma once

#include "base/mutex.hpp"
#include "rendezvous/connection.hpp"
#include "rendezvous/desk.hpp"

#include "stretto/options.hpp"
#include "stretto/spi/control.hpp"
#include "stretto/status.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace stretto::rendezvous {

/// A control plane over sockets, with the thread that serves them.
///
/// Threading: the interface of ControlPlane is thread-safe; everything protected is
///            confined(control thread) once start has been called.
/// Ownership: leave and the destructor end the thread and close the sockets.  The destructor waits
///            for the thread, which never blocks, and for no peer; leave for at most a second,
///            until the peers have taken what was said.
class StarPlane : public spi::ControlPlane {
 public:
  Rank rank() const noexcept override { return Rank{static_cast<std::uint32_t>(options_.rank)}; }
  std::size_t size() const noexcept override { return options_.size; }
  Result<std::vector<spi::Bytes>> all_gather(std::string_view what,
                                             std::span<const std::byte> mine,
                                             Deadline deadline) override;
  Status health() const override { return desk_.bell().health(); }
  int descriptor() const noexcept override { return desk_.bell().descriptor(); }
  void abort(const Status& reason) noexcept override;
  void leave() noexcept override;

  Status wait_joined(Deadline deadline) { return desk_.wait_joined(deadline); }
  /// Strangers and wrong ranks that were turned away.
  std::uint64_t refused() const noexcept { return refused_.load(std::memory_order_relaxed); }
  void start();

 protected:
  /// What both kinds of plane are made of, so that their constructors cannot fail.
  struct Parts {
    FileDescriptor epoll;
    Waker waker;
    HealthBell bell;
  };
  static Result<Parts> make_parts();
  static constexpr std::uint64_t kWakerKey = 0;
  static constexpr std::uint64_t kListenerKey = 1;

  StarPlane(GroupOptions options, Parts parts);

  /// Ends the thread; derived destructors call it first, while their members still live.
  void stop(Desk::Goodbye goodbye) noexcept;

  // What the two kinds do differently.
  virtual void on_accept() {}
  virtual void on_frame(Connection& connection, const Frame& frame) = 0;
  /// The connection has ended, or sent what is no frame; it is dropped after the call.
  virtual void on_end(Connection& connection, const std::string& how) = 0;
  virtual void on_turn(TimePoint now) = 0;
  virtual void on_gather(GatherCall call) = 0;
  virtual void on_ask_missing(std::uint64_t sequence) = 0;
  virtual void on_abort(const std::string& text) = 0;
  virtual void on_goodbye() = 0;

  bool watch(int descriptor, std::uint64_t key, std::uint32_t events);
  void unwatch(int descriptor);
  Connection& adopt(std::unique_ptr<Connection> connection);
  void send(Connection& connection, SharedFrame frame);
  /// Closes the connection at the end of this turn.
  void drop(Connection& connection);
  bool is_dropped(const Connection& connection) const;
  void count_refused() noexcept { refused_.fetch_add(1, std::memory_order_relaxed); }

  const GroupOptions options_;
  Desk desk_;
  std::chrono::milliseconds dead_after_;
  std::chrono::milliseconds beat_;  ///< a heartbeat is sent every so often
  std::unordered_map<std::uint64_t, std::unique_ptr<Connection>> connections_;

 private:
  void run();
  void part_from_peers(Deadline deadline);
  bool serve_requests();
  void wait_for_events();
  void serve(Connection& connection, TimePoint now);
  void forgive_own_sleep(TimePoint now);

  FileDescriptor epoll_;
  std::uint64_t next_key_ = 2;
  std::unordered_map<const Connection*, std::uint64_t> keys_;
  std::vector<std::uint64_t> dropped_;
  std::unordered_map<std::uint64_t, bool> wants_out_;
  TimePoint last_turn_ = Clock::now();
  bool said_goodbye_ = false;
  std::atomic<std::uint64_t> refused_{0};
  Mutex stop_mutex_;
  std::thread thread_ STRETTO_GUARDED_BY(stop_mutex_);
};

/// How rank `rank` is reported lost.
Status lost_status(std::size_t rank, const std::string& how);

}  // namespace stretto::rendezvous

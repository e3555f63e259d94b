// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"

#include "stretto/status.hpp"

#include <cstddef>
#include <memory>
#include <string>

namespace stretto::cli {

/// Writes from a thread of its own, so that whoever reads slowly, or has stopped, holds up nobody
/// but those who write to it.
///
/// A descriptor that others share (a terminal, a pipe) must not be made non-blocking for them all,
/// and even one that polls as writable may block; so it takes a thread, made with the first text.
///
/// Threading: confined(main thread).        Blocking: never.
/// Ownership: a write that does not return ends with the process.
class Outlet {
 public:
  static Result<Outlet> make();
  Outlet(Outlet&&) noexcept = default;
  Outlet& operator=(Outlet&&) noexcept = default;
  ~Outlet();

  /// Adds to what is to be written, in this order, each to its own descriptor.  Takes it in any
  /// case; who has much asks for room first.
  void put(int to, std::string text);
  bool has_room() const;
  /// Whether all has been written.
  bool is_empty() const;

  /// Readable once more has been written; then drain.
  int descriptor() const noexcept;
  void drain() const noexcept;

 private:
  struct State;

  explicit Outlet(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;  // shared with the thread, which may be stuck and outlive this
  bool started_ = false;
};

}  // namespace stretto::cli

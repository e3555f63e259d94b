// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/thread_annotations.hpp"

namespace stretto {

/// A role that one thread at a time plays, as a capability: data guarded by a role can be touched
/// only by functions that require it, and clang checks that at compile time.
class STRETTO_CAPABILITY("role") ThreadRole {
 public:
  /// The calling thread takes the role on.
  void enter() STRETTO_ACQUIRE() {}
  /// The calling thread gives the role up.
  void exit() STRETTO_RELEASE() {}
  /// States that the caller is known to have the role (it is alone, as in a constructor).
  void assume() const STRETTO_ASSERT_CAPABILITY(this) {}
};

/// Plays a role for a scope.
class STRETTO_SCOPED_CAPABILITY RoleScope {
 public:
  explicit RoleScope(ThreadRole& role) STRETTO_ACQUIRE(role) : role_(role) { role_.enter(); }
  ~RoleScope() STRETTO_RELEASE() { role_.exit(); }
  RoleScope(const RoleScope&) = delete;
  RoleScope& operator=(const RoleScope&) = delete;

 private:
  ThreadRole& role_;
};

}  // namespace stretto

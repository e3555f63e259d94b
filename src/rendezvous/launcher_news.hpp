// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/file_descriptor.hpp"

#include "stretto/status.hpp"

#include <string>

namespace stretto::rendezvous {

/// A rank that dies before it has met the others is missed by nobody but the program that started
/// it.  `stretto run` therefore gives its ranks a memfd, which leaves nothing behind, and writes
/// there which rank has ended.  Ranks look at it until all have met; afterwards the control
/// connections know more, and sooner.

/// The variable that holds the descriptor's number.
constexpr const char* kLauncherNewsVariable = "STRETTO_RUN_NEWS";

/// For the launcher; children inherit it.
Result<FileDescriptor> make_launcher_news();
/// The first text stays.
void write_launcher_news(int descriptor, const std::string& text) noexcept;

/// kPeerLost with what the launcher wrote; success if there is no news, or no such launcher.
Status launcher_news();

}  // namespace stretto::rendezvous

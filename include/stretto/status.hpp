// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <tl/expected.hpp>

namespace stretto {

/// Says what the caller can do next, not where the error came from.
enum class StatusCode : std::uint8_t {
  kOk = 0,
  kWouldBlock,        ///< no room now: poll, then repeat the call
  kDeadlineExceeded,  ///< a wait ran out: decide at the level of the step
  kPeerLost,          ///< a rank is gone: end, or form the group anew
  kAborted,           ///< this step was given up: redo it, or end
  kCorruptWire,       ///< bytes that nobody of this group sent: dropped and counted
  kInvalidArgument,   ///< the call is wrong: correct it
  kUnsupported,       ///< not in this build or not by this back end: choose another
  kUnavailable,       ///< the environment refused (port, file, address): correct it
  kInternal,          ///< a bug in Stretto: please report it
};

/// Names a code as it is printed, e.g. "peer lost".
std::string_view to_string(StatusCode code) noexcept;

/// Carries success, or a code and a sentence that says who, what and what to do next.
///
/// Threading: immutable; copies may be used on any thread.
/// Cost:      a success allocates nothing; the sentence of an error once.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(StatusCode code, std::string message);

  static Status ok() noexcept { return {}; }

  bool is_ok() const noexcept { return code_ == StatusCode::kOk; }
  StatusCode code() const noexcept { return code_; }
  /// The sentence; empty for a success.
  std::string_view message() const noexcept;
  /// "peer lost: rank 2 ..." as it is shown to people.
  std::string to_string() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::shared_ptr<const std::string> message_;  // shared by copies of the same error
};

/// A value, or the Status that says why there is none.
template <typename T>
using Result = tl::expected<T, Status>;

/// Wraps a failed Status for return from a function that returns Result<T>.
inline tl::unexpected<Status> fail(Status status) {
  return tl::unexpected<Status>(std::move(status));
}

/// Makes and wraps an error in one go.
inline tl::unexpected<Status> fail(StatusCode code, std::string message) {
  return fail(Status(code, std::move(message)));
}

namespace detail {
inline const Status& status_of(const Status& status) {
  return status;
}
template <typename T>
const Status& status_of(const Result<T>& result) {
  return result.error();
}
inline bool succeeded(const Status& status) {
  return status.is_ok();
}
template <typename T>
bool succeeded(const Result<T>& result) {
  return result.has_value();
}
/// Converts to whatever the enclosing function returns: Status, or Result<T>.
class Propagate {
 public:
  explicit Propagate(Status status) : status_(std::move(status)) {}
  operator Status() && { return std::move(status_); }  // NOLINT(google-explicit-constructor)
  template <typename T>
  operator Result<T>() && {  // NOLINT(google-explicit-constructor)
    return fail(std::move(status_));
  }

 private:
  Status status_;
};
}  // namespace detail
}  // namespace stretto

/// Returns the error of a Status or Result expression to the caller; goes on after a success.
#define STRETTO_TRY(expression)                                                         \
  do {                                                                                  \
    auto&& stretto_tried = (expression);                                                \
    if (!::stretto::detail::succeeded(stretto_tried)) [[unlikely]] {                    \
      return ::stretto::detail::Propagate(::stretto::detail::status_of(stretto_tried)); \
    }                                                                                   \
  } while (false)

#define STRETTO_CONCATENATE_INNER(a, b) a##b
#define STRETTO_CONCATENATE(a, b) STRETTO_CONCATENATE_INNER(a, b)
#define STRETTO_TRY_ASSIGN_INNER(temporary, declaration, expression) \
  auto temporary = (expression);                                     \
  if (!temporary.has_value()) [[unlikely]] {                         \
    return ::stretto::detail::Propagate(temporary.error());          \
  }                                                                  \
  declaration = std::move(*temporary)

/// Declares or assigns from a Result, or returns its error: STRETTO_TRY_ASSIGN(auto x, make_x());
#define STRETTO_TRY_ASSIGN(declaration, expression) \
  STRETTO_TRY_ASSIGN_INNER(STRETTO_CONCATENATE(stretto_result_, __LINE__), declaration, expression)

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace stretto::transport {

// How two ranks make sure of each other before the first frame.  Four messages of one size:
//
//   connector                                acceptor
//   kHello(nonce c)            ->            checks version, job, size, rank
//                              <-            kChallenge(nonce a, proof of the acceptor)
//   kProof(proof)              ->
//                              <-            kWelcome
//
// or kRefuse, with the reason, instead of any answer.  A proof is a hash over the token, both
// nonces and both ranks, so the token does not travel and no recorded proof is of use again.  The
// hash is XXH3, which is fast and not cryptographic: this keeps apart jobs, versions and scanners
// that meet by accident.  It does not stop an attacker who can read or write the network; ranks of
// a group trust their network (SECURITY.md).
//
//   offset  bytes
//        0      8  magic "STRETTO1"     16      4  size       32      8  nonce
//        8      1  wire version         20      4  zero       40      8  proof
//        9      1  kind                 24      8  job
//       10      1  refusal
//       11      1  zero
//       12      4  rank

inline constexpr std::size_t kHandshakeBytes = 48;
using HandshakeBytes = std::array<std::byte, kHandshakeBytes>;

/// Why a connection was refused.  The values are part of the wire format.
enum class Refusal : std::uint8_t {
  kNone = 0,
  kGarbage = 1,  ///< not a handshake, or not the message that comes next
  kVersion = 2,  ///< another version of the wire format
  kJob = 3,      ///< another job
  kSize = 4,     ///< another number of ranks
  kRank = 5,     ///< a rank that does not exist, is not expected here, or is connected already
  kToken = 6,    ///< another token
};

/// "its token is another one".
std::string_view to_string(Refusal refusal) noexcept;

/// What a rank says of itself.
struct Identity {
  Rank rank{0};
  std::size_t size = 1;
  std::uint64_t job_id = 0;
  std::string token;
};

/// One side of the handshake, without a socket: bytes in, bytes out.
///
/// Threading: thread-compatible.
/// Ownership: `identity` outlives the handshake.
class Handshake {
 public:
  enum class State : std::uint8_t { kTalking, kDone, kRefused };

  /// The side that connects to `peer`.
  static Handshake connector(const Identity& identity, Rank peer, std::uint64_t nonce);
  /// The side that is connected to, by any rank above its own.
  static Handshake acceptor(const Identity& identity, std::uint64_t nonce);

  /// Where the next bytes from the peer go; never more than belong to the handshake.  Empty once it
  /// is over.
  std::span<std::byte> input() noexcept;
  /// Says that so many bytes have been put there.
  void received(std::size_t bytes) noexcept;
  /// What is to be sent; may hold a last word after the end.
  std::span<const std::byte> output() const noexcept;
  void sent(std::size_t bytes) noexcept { output_begin_ += bytes; }

  /// Gives up on a peer that is known but not wanted.
  void refuse(Refusal refusal) noexcept;

  State state() const noexcept { return state_; }
  /// Who it is; proved once the state is kDone.
  Rank peer() const noexcept { return peer_; }
  /// Whether the acceptor knows who it claims to be.
  bool peer_is_known() const noexcept { return peer_is_known_; }
  Refusal refusal() const noexcept { return refusal_; }
  /// Whether it was the other side that refused.
  bool was_refused_by_peer() const noexcept { return refused_by_peer_; }

 private:
  enum class Kind : std::uint8_t { kHello = 1, kChallenge, kProof, kWelcome, kRefuse };
  struct Message;

  Handshake(const Identity& identity, bool connects, Rank peer, std::uint64_t nonce)
      : identity_(&identity), connects_(connects), peer_(peer), nonce_(nonce) {}

  void say(Kind kind, std::uint64_t nonce, std::uint64_t proof, Refusal refusal) noexcept;
  void handle(const Message& message) noexcept;
  Refusal check(const Message& message) const noexcept;
  std::uint64_t proof_of(Kind side) const noexcept;

  const Identity* identity_;
  bool connects_;
  Rank peer_;
  std::uint64_t nonce_;
  std::uint64_t peer_nonce_ = 0;
  Kind expected_ = Kind::kHello;
  State state_ = State::kTalking;
  Refusal refusal_ = Refusal::kNone;
  bool refused_by_peer_ = false;
  bool peer_is_known_ = false;
  HandshakeBytes input_{};
  std::size_t input_end_ = 0;
  std::array<std::byte, 2 * kHandshakeBytes> output_{};
  std::size_t output_begin_ = 0;
  std::size_t output_end_ = 0;
};

}  // namespace stretto::transport

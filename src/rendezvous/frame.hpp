// SPDX-License-Identifier: Apache-2.0
//
// The control wire.  A frame is 12 bytes of header (magic, kind, three zero bytes, length of the
// body) and a body.  The header, kChallenge, the first two fields of kHello and kRefused never
// change, so that two versions of Stretto can tell each other that they differ.
#pragma once

#include "stretto/spi/control.hpp"
#include "stretto/status.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stretto::rendezvous {

/// Grows with every change of a frame; ranks of different numbers refuse each other.
inline constexpr std::uint32_t kWireVersion = 1;
inline constexpr std::size_t kFrameHeaderBytes = 12;
/// The longest body that a stranger may send.
inline constexpr std::size_t kStrangerBodyBytes = 1024;
/// The longest text in a frame; longer ones are cut.
inline constexpr std::size_t kMostTextBytes = 4096;
inline constexpr std::size_t kMostRanks = 4096;

enum class FrameKind : std::uint8_t {
  kChallenge = 1,  ///< rank 0 to whoever connects: version and nonce
  kHello,          ///< who connects, and the proof of the token
  kAccepted,       ///< rank 0's own proof
  kRefused,        ///< a sentence that says why; the connection is closed after it
  kComplete,       ///< all ranks are there
  kHeartbeat,      ///< while ranks gather: who is missing
  kBye,            ///< the sender leaves on purpose
  kAbort,          ///< the sender gives up, and why
  kLost,           ///< rank 0 says who was lost, and how
  kGather,         ///< a rank's blob
  kGathered,       ///< all ranks' blobs
  kBroken,         ///< the gather (or the joining) has failed for all: code and sentence
  kAskMissing,     ///< a rank's gather ran out of time: who has not called?
  kMissing,        ///< the answer
};
inline constexpr std::uint8_t kLastFrameKind = static_cast<std::uint8_t>(FrameKind::kMissing);

struct Frame {
  FrameKind kind = FrameKind::kHeartbeat;
  spi::Bytes body;
};

/// Cuts a stream of bytes into frames.
///
/// Threading: thread-compatible.
class FrameReader {
 public:
  explicit FrameReader(std::size_t most_body_bytes) : most_body_bytes_(most_body_bytes) {}

  void set_most_body_bytes(std::size_t most) noexcept { most_body_bytes_ = most; }
  void append(std::span<const std::byte> bytes);
  /// Whether as much is buffered as a legal frame can have.
  bool full() const noexcept {
    return buffer_.size() - head_ >= kFrameHeaderBytes + most_body_bytes_;
  }
  /// The next whole frame, if there is one.
  ///
  /// Errors: kCorruptWire for bytes that are no frame; the connection is of no use then.
  Result<std::optional<Frame>> next();

 private:
  std::vector<std::byte> buffer_;
  std::size_t head_ = 0;
  std::size_t most_body_bytes_;
};

using Nonce = std::array<std::byte, 16>;

struct Challenge {
  std::uint32_t version = kWireVersion;
  Nonce nonce{};
};
struct Hello {
  std::uint32_t version = kWireVersion;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  Nonce nonce{};
  std::uint64_t proof = 0;
};
struct Accepted {
  std::uint64_t proof = 0;
  std::uint64_t job = 0;  ///< the same for all ranks of one group, another for the next
  std::uint32_t dead_after_ms = 0;
};
/// kRefused, kHeartbeat, kAbort, kLost, kBroken, kMissing: a number and a sentence.
struct Notice {
  std::uint64_t number = 0;  ///< rank, code or sequence
  std::string text;
};
struct GatherCall {
  std::uint64_t sequence = 0;
  std::string what;
  spi::Bytes blob;
};
struct Gathered {
  std::uint64_t sequence = 0;
  std::vector<spi::Bytes> blobs;
};

/// A frame ready to be sent to several peers.
using SharedFrame = std::shared_ptr<const spi::Bytes>;

SharedFrame encode(FrameKind kind, std::span<const std::byte> body = {});
SharedFrame encode(const Challenge& challenge);
SharedFrame encode(const Hello& hello);
SharedFrame encode(const Accepted& accepted);
SharedFrame encode(FrameKind kind, const Notice& notice);
SharedFrame encode(const GatherCall& call);
SharedFrame encode(std::uint64_t sequence, const std::vector<spi::Bytes>& blobs);

// Nothing if the bytes are not such a body.
std::optional<Challenge> decode_challenge(std::span<const std::byte> body);
/// With another version only version and rank are read.
std::optional<Hello> decode_hello(std::span<const std::byte> body);
std::optional<Accepted> decode_accepted(std::span<const std::byte> body);
std::optional<Notice> decode_notice(std::span<const std::byte> body);
std::optional<GatherCall> decode_gather_call(std::span<const std::byte> body);
std::optional<Gathered> decode_gathered(std::span<const std::byte> body);

Nonce make_nonce();

/// What proves that one knows the token, without sending it.  XXH3 is not a cryptographic hash:
/// this keeps jobs apart that meet by accident and stops nobody who means harm.
enum class Prover : std::uint8_t { kJoiner = 1, kRankZero = 2 };
std::uint64_t prove_token(std::string_view token,
                          Prover prover,
                          const Nonce& of_rank_zero,
                          const Nonce& of_joiner,
                          std::uint32_t rank,
                          std::uint32_t size);

}  // namespace stretto::rendezvous

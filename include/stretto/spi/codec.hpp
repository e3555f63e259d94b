// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace stretto::spi {

/// What a wire leaves out of what it encodes.
enum class CodecError : std::uint8_t {
  kNone,      ///< nothing: decoding gives the same bits
  kRounding,  ///< less than a unit in the last place of the wire's format
  kUnbiased,  ///< more, but nothing on average
  kBiased,    ///< more, and always the same way: to be used with error feedback
};

/// Says what a codec is; callers ask, they never assume.
struct CodecTraits {
  std::string name;          ///< "plain", ...
  std::uint8_t id = 0;       ///< in message headers; 0: plain
  std::uint8_t version = 1;  ///< of the wire's format; ranks must have the same
  CodecError error = CodecError::kNone;
  unsigned rounds = 1;         ///< how often a segment goes through an exchange in one step
  bool owns_momentum = false;  ///< an optimizer with a momentum of its own must not follow
};

/// A part of one parameter that is encoded by itself; fixed by the agreed plan, never by chunks.
struct CodecSegment {
  DType dtype = DType::kFloat32;
  std::size_t element_count = 0;
  std::size_t row_elements = 0;  ///< length of a row, for codecs that see a matrix; 0: a vector
  std::uint64_t seed = 0;        ///< the same on all ranks
};

/// What encode has done.
struct Encoding {
  std::size_t wire_bytes = 0;
  std::size_t non_finite = 0;  ///< values that were NaN or infinite; the wire says 0 for them
};

/// Turns the values of one segment into few bytes, and the bytes of all ranks into their sum.
///
/// One object serves one segment on one rank and holds whatever that needs from step to step.  In
/// each round a rank encodes; then whoever reduces absorbs the wires of all ranks, in rank order,
/// its own too, and decodes.  Error feedback is nothing that a codec does, but it helps: where it
/// is given a residual it encodes value + residual and leaves there what the wire does not say, in
/// the same pass over memory.
///
/// Shapes:    values and result [element_count] of the segment's dtype; residual [element_count]
///            of float32, or empty.
/// Threading: thread-compatible.        Blocking: never.        Cost: no allocation after making.
/// Ownership: nothing is kept beyond a call.
/// Errors:    kCorruptWire for bytes that no encode of this version has written; nothing of them
///            is used.
/// Numerics:  absorb adds samples * decoded(wire) in float32; decode multiplies the total once and
///            rounds once.
class Codec {
 public:
  Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;
  virtual ~Codec() = default;

  virtual const CodecTraits& traits() const noexcept = 0;

  /// What encode may write in a round, at most.
  virtual std::size_t most_wire_bytes(unsigned round) const noexcept = 0;

  /// Writes what the values are, with the residual where there is one.
  ///
  /// Errors: kInvalidArgument for spans of another length than the segment, or a round that there
  ///         is not.
  virtual Result<Encoding> encode(unsigned round,
                                  std::span<const std::byte> values,
                                  std::span<float> residual,
                                  std::span<std::byte> wire) = 0;

  /// Adds what one rank's wire says, with the weight of its samples.
  virtual Status absorb(unsigned round, std::uint64_t samples, std::span<const std::byte> wire) = 0;

  /// Writes scale times what was absorbed since the last decode, and forgets it.
  virtual Status decode(unsigned round, float scale, std::span<std::byte> result) = 0;
};

}  // namespace stretto::spi

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
  std::string name;          ///< "plain", "int8", "topk:1%", ...: makes the same codec again
  std::uint8_t id = 0;       ///< in message headers; 0: plain
  std::uint8_t version = 1;  ///< of the wire's format; ranks must have the same
  CodecError error = CodecError::kNone;
  bool feedback = false;         ///< is given residuals (error feedback)
  bool owns_momentum = false;    ///< an optimizer with a momentum of its own must not follow
  bool fixed_length = true;      ///< every wire of a segment and round has most_wire_bytes
  bool whole_parameter = false;  ///< a segment is a parameter, whatever its size
  unsigned rounds = 1;           ///< how often a segment goes through an exchange in one step
  std::size_t segment_elements = std::size_t{32}
                                 << 10;  ///< of every segment but a parameter's last
};

/// A part of one parameter that is encoded by itself; fixed at commit, never by chunks.
struct CodecSegment {
  DType dtype = DType::kFloat32;
  std::size_t element_count = 0;
  std::size_t row_elements = 0;  ///< length of a row, for codecs that see a matrix; 0: a vector
  std::uint64_t seed = 0;        ///< its own, the same on all ranks
};

/// What stays between the steps for one segment, at one place: a rank that sends, or the owner that
/// sums.  Each step reads what the one before has left and writes what the next one is to find into
/// other memory, all of it: so a step that is abandoned has changed nothing.
///
/// Whoever does not encode in a step keeps its residual, and its state unless decode writes the
/// next one: the caller sees to that before the step's first call.
///
/// Ownership: the caller's, zeroed before the first step.
struct CodecMemory {
  const float* residual = nullptr;  ///< [element_count]; null: no error feedback
  float* left = nullptr;            ///< [element_count]: the next step's residual; null with it
  float factor = 1;                 ///< for the residual: weights and learning rates may change
  const float* state = nullptr;     ///< [state_floats]
  float* next_state = nullptr;      ///< [state_floats]
  float* scratch = nullptr;         ///< [scratch_floats], kept from a step's first call to its last
};

/// Which call this is.
struct CodecRound {
  unsigned round = 0;
  std::uint64_t step = 0;
  std::uint32_t source = 0;  ///< the rank that encodes; of conclude the number of ranks
  std::uint32_t ranks = 1;
};

/// What encode or conclude has done.
struct Encoding {
  std::size_t wire_bytes = 0;
  std::size_t refused = 0;   ///< values beyond 2^60, infinite or no number; taken for 0
  double value_squares = 0;  ///< sum of their squares, without the residual; in the last round
  double left_squares = 0;   ///< and of those of what is left
};

/// Turns the values of one segment into few bytes, and the bytes of all ranks into their mean.
///
/// In each round every rank encodes; whoever reduces absorbs the wires of all ranks in rank order,
/// its own too, into float32 sums that were zero, and concludes: it encodes the mean, with a memory
/// of its own.  Every rank, the owner too, decodes that.  Where every rank reduces for itself (the
/// all-gather form) it resolves instead, and nothing is encoded a second time.
///
/// Error feedback is nothing that a codec decides, but it helps: where it is given a residual it
/// encodes value + factor * residual and leaves there what the wire does not say, in the same pass
/// over memory.  What is refused never enters a residual.
///
/// Shapes:    values and result [element_count] of the segment's dtype; sums [sum_floats].
/// Threading: immutable: any number of segments on any number of threads.
/// Blocking:  never.        Cost: no allocation.
/// Errors:    kCorruptWire for bytes that no encode of this version has written; nothing of them is
///            used.  kInvalidArgument for spans of another length, or a round that there is not.
/// Numerics:  what a wire says depends on nothing but the arguments: the same bits on every thread,
///            processor and day.
class Codec {
 public:
  Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;
  virtual ~Codec() = default;

  virtual const CodecTraits& traits() const noexcept = 0;

  /// What encode or conclude may write in a round, at most.
  virtual std::size_t most_wire_bytes(const CodecSegment& segment,
                                      unsigned round) const noexcept = 0;
  /// Whether it makes the segment smaller; what does not suit travels uncompressed.
  virtual bool suits(const CodecSegment& segment) const noexcept {
    static_cast<void>(segment);
    return true;
  }
  /// What absorb adds to in a round.
  virtual std::size_t sum_floats(const CodecSegment& segment, unsigned round) const noexcept {
    static_cast<void>(round);
    return segment.element_count;
  }
  /// What a sender keeps between the steps, beside its residual.
  virtual std::size_t state_floats(const CodecSegment& segment) const noexcept {
    static_cast<void>(segment);
    return 0;
  }
  /// What a rank keeps from a step's first call to its last.
  virtual std::size_t scratch_floats(const CodecSegment& segment) const noexcept {
    static_cast<void>(segment);
    return 0;
  }

  /// Writes what the values are, with the residual where there is one.
  virtual Result<Encoding> encode(const CodecSegment& segment,
                                  const CodecRound& round,
                                  std::span<const std::byte> values,
                                  const CodecMemory& memory,
                                  std::span<std::byte> wire) const = 0;

  /// sums += weight * what the wire says.
  virtual Status absorb(const CodecSegment& segment,
                        const CodecRound& round,
                        std::span<const std::byte> wire,
                        float weight,
                        std::span<float> sums) const = 0;

  /// Writes what scale * sums is, with the owner's residual where there is one.  May overwrite
  /// sums.
  virtual Result<Encoding> conclude(const CodecSegment& segment,
                                    const CodecRound& round,
                                    std::span<float> sums,
                                    float scale,
                                    const CodecMemory& memory,
                                    std::span<std::byte> wire) const = 0;

  /// Takes a round's mean from a wire that conclude has written; writes the result in the last
  /// round (before, `result` is not looked at).
  virtual Status decode(const CodecSegment& segment,
                        const CodecRound& round,
                        std::span<const std::byte> wire,
                        const CodecMemory& memory,
                        std::span<std::byte> result) const = 0;

  /// As decode, of scale * sums itself.  May overwrite sums.
  virtual Status resolve(const CodecSegment& segment,
                         const CodecRound& round,
                         std::span<float> sums,
                         float scale,
                         const CodecMemory& memory,
                         std::span<std::byte> result) const = 0;
};

}  // namespace stretto::spi

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace stretto {

/// What one step cost this rank.  compute = step - exposed and hidden = busy - (busy while
/// waiting), always: these are the definitions.
struct StepReport {
  std::uint64_t step = 0;
  double step_ms = 0;  ///< from begin_step (or the end of the previous step) to the end of this one
  double compute_ms = 0;            ///< step less exposed
  double exposed_ms = 0;            ///< the training thread waited inside Stretto
  double busy_ms = 0;               ///< at least one chunk was on its way
  double hidden_ms = 0;             ///< the part of busy in which the training thread did not wait
  std::uint64_t payload_bytes = 0;  ///< gradient bytes that this rank sent; shared memory: 0
  std::uint64_t wire_bytes = 0;     ///< the same with headers and grants
  double cpu_s = 0;                 ///< processor seconds of Stretto's own threads
  std::uint64_t samples = 0;        ///< of all ranks together
  std::uint64_t non_finite = 0;     ///< gradients with NaN or infinity on this rank
  /// Norm of what the codecs have left for the next step / norm of the gradients they encoded; 0
  /// where there is no error feedback.  What fidelity was traded.
  double residual_ratio = 0;
  std::uint64_t refused = 0;      ///< values that a codec took for 0: not finite, or beyond 2^60
  std::size_t unused = 0;         ///< parameters that this rank did not use
  std::size_t chunks = 0;         ///< chunks that were exchanged
  std::optional<Rank> last_rank;  ///< whose footer came last, where there is more than one rank
  bool all_ended = false;         ///< every rank has said that it has no further batches
};

}  // namespace stretto

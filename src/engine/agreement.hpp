// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/engine.hpp"
#include "stretto/spi/control.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace stretto::engine {

/// Makes sure that all ranks train the same model with the same options, before anything moves.
///
/// Blocking: until all ranks have called, or the deadline.
/// Errors:   kInvalidArgument names both ranks and what differs: the version, the option, or the
///           parameter with both shapes and dtypes.  `codecs` says which are in use, and their
///           wires' versions.
Status agree_on_parameters(spi::ControlPlane& control,
                           std::span<const ParameterSpec> parameters,
                           const EngineOptions& options,
                           const std::string& codecs,
                           Deadline deadline);

/// Waits until all ranks have come to the change of plan before `step`: nothing is in flight then.
Status agree_to_change_plan(spi::ControlPlane& control, std::uint64_t step, Deadline deadline);

/// Rank 0's order of gradients, for all from `step` on.
Result<std::vector<std::uint32_t>> agree_on_order(spi::ControlPlane& control,
                                                  std::span<const std::uint32_t> seen,
                                                  std::uint64_t step,
                                                  Deadline deadline);

/// The sum of all ranks' samples in `step`.
Result<std::uint64_t> agree_on_total(spi::ControlPlane& control,
                                     std::uint64_t samples,
                                     std::uint64_t step,
                                     Deadline deadline);

/// Compares hashes of the parameters; errors as Engine::check_replicas.
Status agree_on_values(spi::ControlPlane& control,
                       std::span<const ParameterSpec> parameters,
                       std::span<const std::uint64_t> hashes,
                       std::uint64_t step,
                       Deadline deadline);

}  // namespace stretto::engine

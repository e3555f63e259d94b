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
///           parameter with both shapes and dtypes.
Status agree_on_parameters(spi::ControlPlane& control,
                           std::span<const ParameterSpec> parameters,
                           const EngineOptions& options,
                           Deadline deadline);

/// Rank 0's order of gradients, for all from `step` on.
Result<std::vector<std::uint32_t>> agree_on_order(spi::ControlPlane& control,
                                                  std::span<const std::uint32_t> seen,
                                                  std::uint64_t step,
                                                  Deadline deadline);

/// Compares hashes of the parameters; errors as Engine::check_replicas.
Status agree_on_values(spi::ControlPlane& control,
                       std::span<const ParameterSpec> parameters,
                       std::span<const std::uint64_t> hashes,
                       std::uint64_t step,
                       Deadline deadline);

}  // namespace stretto::engine

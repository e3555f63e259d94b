// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "schedule/layout.hpp"

#include "stretto/engine.hpp"
#include "stretto/options.hpp"
#include "stretto/status.hpp"

#include <span>
#include <string>

namespace stretto::engine {

/// Which codec each parameter gets: that of the first rule whose pattern fits its name; else, if it
/// is a gradient with at least two dimensions (no bias, no norm) and as many elements as
/// `codec_minimum` says, `codec`.  Only gradients (Rule::kMean) are ever encoded.
///
/// Errors: kInvalidArgument says which rule or codec cannot be read and what would be right.
Result<schedule::Coding> choose_codecs(std::span<const ParameterSpec> parameters,
                                       const EngineOptions& options);

/// What ranks must have in common beside the rules: the codecs in use with their wires' versions.
std::string codec_versions(const schedule::Coding& coding);

}  // namespace stretto::engine

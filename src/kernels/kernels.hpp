// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/device.hpp"
#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <string_view>
#include <vector>

namespace stretto::kernels {

// Functions over raw memory of a DType.  Pointers may be aligned to any byte; a length of 0 is
// legal with null pointers.  A destination may be the same memory as a source, element for element,
// but must not overlap it otherwise.  arithmetic.hpp says exactly what is computed; the bits are
// the same on every instruction set.
//
// Threading: thread-safe.        Blocking: never.        Cost: one pass over memory.

/// destination[i] = 0.
void zero(DType dtype, std::byte* destination, std::size_t n) noexcept;

/// destination[i] = source[i], bit by bit.
void copy(DType dtype, std::byte* destination, const std::byte* source, std::size_t n) noexcept;

/// destination[i] = source[i] as the other type, to nearest even.
void cast(
    DType to, std::byte* destination, DType from, const std::byte* source, std::size_t n) noexcept;

/// destination[i] += source[i], added in float32.
void accumulate(DType dtype,
                std::byte* destination,
                const std::byte* source,
                std::size_t n) noexcept;

/// How many elements are NaN or infinite.
std::size_t count_non_finite(DType dtype, const std::byte* source, std::size_t n) noexcept;

/// Whether an operation makes sense; kInvalidArgument names what is wrong.  Cheap.
Status validate(const spi::Operation& operation);

/// Does a valid operation, whole, on the calling thread.
void run(const spi::Operation& operation) noexcept;

/// The part of an operation that touches elements [first, first + count) only.
spi::Operation slice(const spi::Operation& operation,
                     std::size_t first,
                     std::size_t count) noexcept;

/// The instruction set in use: "scalar", "AVX2", ...  STRETTO_TARGET (the same names, in any case)
/// chooses one at first use; one that this processor lacks is logged and the best one taken.
std::string_view target_name() noexcept;

/// All that this processor has, best first; the last is "scalar".
std::vector<std::string_view> available_targets();

/// Chooses an instruction set from here on, for tests.  Errors: kUnsupported names those there are.
Status select_target(std::string_view name);

}  // namespace stretto::kernels

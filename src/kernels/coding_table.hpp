// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/wire_format.hpp"

namespace stretto::kernels {

/// The functions of coding.hpp as one instruction set has them.
struct CodingTable {
  EncodeFacts (*encode)(WireFormat format, const EncodeTask& task);
  void (*absorb)(WireFormat format, const std::byte* wire, std::size_t n, float weight, float* sum);
  void (*decode)(WireFormat format,
                 const std::byte* wire,
                 std::size_t n,
                 float scale,
                 DType dtype,
                 std::byte* result);
};

/// One element at a time: the reference.
const CodingTable& scalar_coding_table() noexcept;

}  // namespace stretto::kernels

// SPDX-License-Identifier: Apache-2.0
#include "codec/sparse_wire.hpp"

#include "codec/rice.hpp"
#include "codec/sparse.hpp"
#include "kernels/select_arithmetic.hpp"

#include <algorithm>
#include <cstring>

namespace stretto::codec {
namespace {

constexpr std::size_t kHeadBytes = sizeof(std::uint32_t) + 1;

/// By bits: to a thread that flushes denormals, one would be equal to 0.
bool is_zero(float value) noexcept {
  return kernels::magnitude_bits(value) == 0;
}

}  // namespace

std::size_t most_sparse_bytes(std::size_t n, std::size_t count) noexcept {
  return n == 0 ? 0 : kHeadBytes + most_index_bytes(n, count) + count * sizeof(float);
}

std::size_t write_sparse(std::size_t n, const SparseElements& elements, std::byte* wire) noexcept {
  if (n == 0) {
    return 0;
  }
  const auto count = static_cast<std::uint32_t>(elements.index.size());
  const auto parameter = static_cast<std::uint8_t>(rice_parameter(n, count));
  std::memcpy(wire, &count, sizeof count);
  std::memcpy(wire + sizeof count, &parameter, 1);
  const std::size_t values =
      kHeadBytes + write_indices(elements.index, parameter, wire + kHeadBytes);
  if (count > 0) {
    std::memcpy(wire + values, elements.value.data(), elements.value.size_bytes());
  }
  return values + elements.value.size_bytes();
}

Result<SparseElements> read_sparse(const std::string& codec,
                                   std::size_t n,
                                   std::size_t most,
                                   std::span<const std::byte> wire) {
  if (n == 0 || wire.size() < kHeadBytes) {
    return n == 0 && wire.empty() ? Result<SparseElements>()
                                  : fail(corrupt_wire(codec, "has another length"));
  }
  std::uint32_t count = 0;
  std::memcpy(&count, wire.data(), sizeof count);
  const auto body = wire.subspan(kHeadBytes);
  if (count > most || body.size() / sizeof(float) < count) {
    return fail(corrupt_wire(codec,
                             "speaks of " + std::to_string(count) + " elements in " +
                                 std::to_string(wire.size()) + " bytes; at most " +
                                 std::to_string(most) + " are sent"));
  }
  SparseRoom& room = sparse_room(count);
  const std::span<std::uint32_t> index(room.index.data(), count);
  const std::span<float> value(room.value.data(), count);
  const auto bits = body.first(body.size() - value.size_bytes());
  const unsigned parameter = rice_parameter(n, count);
  if (std::to_integer<unsigned>(wire[sizeof count]) != parameter ||
      !read_indices(bits, parameter, n, index)) {
    return fail(corrupt_wire(codec, "has indices that no encoder writes"));
  }
  if (count > 0) {
    std::memcpy(value.data(), body.data() + bits.size(), value.size_bytes());
  }
  if (!are_values(value) || std::any_of(value.begin(), value.end(), is_zero)) {
    return fail(corrupt_wire(codec, "has values that no encoder writes"));
  }
  return SparseElements{index, value};
}

}  // namespace stretto::codec

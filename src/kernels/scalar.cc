// SPDX-License-Identifier: Apache-2.0
#include "kernels/arithmetic.hpp"
#include "kernels/scalar_formats.hpp"
#include "kernels/table.hpp"

namespace stretto::kernels {
namespace {

template <typename To, typename From>
void cast_elements(std::byte* destination, const std::byte* source, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    To::store(destination, i, From::load(source, i));
  }
}

template <typename To>
void cast_from(DType from, std::byte* destination, const std::byte* source, std::size_t n) {
  switch (from) {
    case DType::kFloat32:
      return cast_elements<To, ScalarFloat>(destination, source, n);
    case DType::kFloat16:
      return cast_elements<To, ScalarHalf>(destination, source, n);
    case DType::kBFloat16:
      return cast_elements<To, ScalarBrain>(destination, source, n);
  }
}

void cast(DType to, std::byte* destination, DType from, const std::byte* source, std::size_t n) {
  switch (to) {
    case DType::kFloat32:
      return cast_from<ScalarFloat>(from, destination, source, n);
    case DType::kFloat16:
      return cast_from<ScalarHalf>(from, destination, source, n);
    case DType::kBFloat16:
      return cast_from<ScalarBrain>(from, destination, source, n);
  }
}

void accumulate(DType dtype, std::byte* destination, const std::byte* source, std::size_t n) {
  switch (dtype) {
    case DType::kFloat32:
      return accumulate_elements<ScalarFloat>(destination, source, 0, n);
    case DType::kFloat16:
      return accumulate_elements<ScalarHalf>(destination, source, 0, n);
    case DType::kBFloat16:
      return accumulate_elements<ScalarBrain>(destination, source, 0, n);
  }
}

void weighted_sum(const spi::Operation& operation) {
  switch (operation.dtype) {
    case DType::kFloat32:
      return sum_elements<ScalarFloat>(operation, 0);
    case DType::kFloat16:
      return sum_elements<ScalarHalf>(operation, 0);
    case DType::kBFloat16:
      return sum_elements<ScalarBrain>(operation, 0);
  }
}

std::size_t count_non_finite(DType dtype, const std::byte* source, std::size_t n) {
  switch (dtype) {
    case DType::kFloat32:
      return count_elements<ScalarFloat>(source, 0, n);
    case DType::kFloat16:
      return count_elements<ScalarHalf>(source, 0, n);
    case DType::kBFloat16:
      return count_elements<ScalarBrain>(source, 0, n);
  }
  return 0;
}

}  // namespace

const Table& scalar_table() noexcept {
  static const Table kTable{"scalar",
                            cast,
                            accumulate,
                            weighted_sum,
                            count_non_finite,
                            &scalar_coding_table(),
                            &scalar_low_rank_table(),
                            &scalar_select_table()};
  return kTable;
}

}  // namespace stretto::kernels

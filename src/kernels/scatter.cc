// SPDX-License-Identifier: Apache-2.0
#include "kernels/scatter.hpp"

#include "kernels/arithmetic.hpp"
#include "kernels/coding_arithmetic.hpp"
#include "kernels/float_environment.hpp"
#include "kernels/kernels.hpp"
#include "kernels/scalar_formats.hpp"

namespace stretto::kernels {
namespace {

template <typename Format>
void store_each(std::span<const std::uint32_t> index,
                std::span<const float> values,
                std::byte* result) noexcept {
  for (std::size_t j = 0; j < index.size(); ++j) {
    Format::store(result, index[j], values[j]);
  }
}

/// What a number stays in a float16.
struct NumberInHalf {
  static void store(std::byte* result, std::size_t i, float value) noexcept {
    ScalarHalf::store(result, i, within_half(value));
  }
};

}  // namespace

void scatter_add(std::span<const std::uint32_t> index,
                 std::span<const float> values,
                 float weight,
                 float* sums) noexcept {
  const FloatEnvironment environment;
  for (std::size_t j = 0; j < index.size(); ++j) {
    sums[index[j]] = add_weighted(sums[index[j]], weight, values[j]);
  }
}

void scatter(std::span<const std::uint32_t> index,
             std::span<const float> values,
             DType dtype,
             std::size_t n,
             std::byte* result) noexcept {
  const FloatEnvironment environment;
  zero(dtype, result, n);
  switch (dtype) {
    case DType::kFloat32:
      return store_each<ScalarFloat>(index, values, result);
    case DType::kFloat16:
      return store_each<NumberInHalf>(index, values, result);
    case DType::kBFloat16:
      return store_each<ScalarBrain>(index, values, result);
  }
}

void scale_into(std::span<float> sums, float scale, DType dtype, std::byte* result) noexcept {
  const FloatEnvironment environment;
  for (float& sum : sums) {
    sum = dtype == DType::kFloat16 ? within_half(sum * scale) : sum * scale;
  }
  const auto* from = reinterpret_cast<const std::byte*>(sums.data());
  cast(dtype, result, DType::kFloat32, from, sums.size());
}

}  // namespace stretto::kernels

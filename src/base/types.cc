// SPDX-License-Identifier: Apache-2.0
#include "stretto/types.hpp"

namespace stretto {

std::string_view to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
  }
  return "unknown";
}

std::size_t element_count(const Shape& shape) noexcept {
  std::size_t count = 1;
  for (const std::int64_t length : shape) {
    count *= static_cast<std::size_t>(length);
  }
  return count;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (const std::int64_t length : shape) {
    if (text.size() > 1) {
      text += ", ";
    }
    text += std::to_string(length);
  }
  return text + "]";
}

}  // namespace stretto

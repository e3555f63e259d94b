// SPDX-License-Identifier: Apache-2.0
#include "tensors.hpp"

#include "stretto/libtorch.hpp"

#include <utility>

#include <ATen/core/grad_mode.h>

namespace stretto::libtorch {

Error::Error(Status status)
    : c10::Error(status.to_string(), std::string()), status_(std::move(status)) {}

void throw_if_failed(const Status& status) {
  if (!status.is_ok()) {
    throw Error(status);
  }
}

void refuse(const std::string& text) {
  throw Error(Status(StatusCode::kInvalidArgument, text));
}

std::optional<DType> exchanged_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Float:
      return DType::kFloat32;
    case c10::ScalarType::Half:
      return DType::kFloat16;
    case c10::ScalarType::BFloat16:
      return DType::kBFloat16;
    default:
      return std::nullopt;
  }
}

c10::ScalarType scalar_type_of(DType type) {
  switch (type) {
    case DType::kFloat32:
      return c10::ScalarType::Float;
    case DType::kFloat16:
      return c10::ScalarType::Half;
    case DType::kBFloat16:
      break;
  }
  return c10::ScalarType::BFloat16;
}

Shape shape_of(const at::Tensor& tensor) {
  return tensor.sizes().vec();
}

std::size_t bytes_in(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * tensor.element_size();
}

std::byte* memory_of(const at::Tensor& contiguous) {
  return static_cast<std::byte*>(contiguous.data_ptr());
}

ContiguousValues::ContiguousValues(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
  const at::NoGradGuard no_grad;
  for (const auto& tensor : tensors_) {
    contiguous_.push_back(tensor.detach().contiguous());
    memory_.push_back(memory_of(contiguous_.back()));
  }
}

void ContiguousValues::written() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].data_ptr() == contiguous_[i].data_ptr()) {
      tensors_[i].unsafeGetTensorImpl()->bump_version();
    } else {
      tensors_[i].copy_(contiguous_[i]);
    }
  }
}

}  // namespace stretto::libtorch

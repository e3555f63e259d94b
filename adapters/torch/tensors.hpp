// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/Tensor.h>

namespace stretto::libtorch {

/// Throws Error unless the status is a success.
void throw_if_failed(const Status& status);
/// Throws Error of kInvalidArgument.
[[noreturn]] void refuse(const std::string& text);

/// The element type as the engine knows it, if it does.
std::optional<DType> exchanged_type(const at::Tensor& tensor);
c10::ScalarType scalar_type_of(DType type);
Shape shape_of(const at::Tensor& tensor);
std::size_t bytes_in(const at::Tensor& tensor);
std::byte* memory_of(const at::Tensor& contiguous);

/// Contiguous memory of some tensors: their own, or a copy where they are laid out otherwise.
///
/// Threading: thread-compatible.
class ContiguousValues {
 public:
  explicit ContiguousValues(std::vector<at::Tensor> tensors);

  std::span<std::byte* const> memory() const noexcept { return memory_; }
  std::span<const std::byte* const> constant_memory() const noexcept {
    return {memory_.data(), memory_.size()};
  }
  std::size_t size() const noexcept { return memory_.size(); }
  std::size_t bytes(std::size_t index) const { return bytes_in(contiguous_[index]); }
  /// After the memory was written: brings it into the tensors and tells autograd.
  void written();

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> contiguous_;
  std::vector<std::byte*> memory_;
};

}  // namespace stretto::libtorch

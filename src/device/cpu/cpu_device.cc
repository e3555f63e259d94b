// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/cpu_event.hpp"
#include "device/cpu/factory.hpp"
#include "device/cpu/inline_stream.hpp"
#include "device/cpu/threaded_stream.hpp"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

namespace stretto::device {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kMaxThreads = 64;

/// Threading: immutable; the memory is the user's.
class CpuBuffer final : public spi::Buffer {
 public:
  CpuBuffer(std::byte* data, std::size_t size) noexcept : data_(data), size_(size) {}
  ~CpuBuffer() override { std::free(data_); }
  std::byte* data() const noexcept override { return data_; }
  std::size_t size() const noexcept override { return size_; }

 private:
  std::byte* data_;
  std::size_t size_;
};

/// Threading: thread-safe (immutable).
class CpuDevice final : public spi::Device {
 public:
  explicit CpuDevice(std::size_t threads) noexcept : threads_(threads) {}

  std::string_view name() const noexcept override { return "cpu"; }
  bool host_accessible() const noexcept override { return true; }

  Result<std::unique_ptr<spi::Stream>> make_stream() override {
    if (threads_ == 0) {
      return std::make_unique<InlineStream>();
    }
    return ThreadedStream::make(threads_);
  }

  Result<std::unique_ptr<spi::Event>> make_event() override { return std::make_unique<CpuEvent>(); }

  Result<std::unique_ptr<spi::Buffer>> allocate(std::size_t bytes) override {
    if (bytes > std::numeric_limits<std::size_t>::max() - kAlignment) {
      return out_of_memory(bytes);
    }
    const std::size_t rounded = (bytes / kAlignment + 1) * kAlignment;
    auto* data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
    if (data == nullptr) {
      return out_of_memory(bytes);
    }
    std::memset(data, 0, rounded);
    return std::make_unique<CpuBuffer>(data, bytes);
  }

 private:
  static tl::unexpected<Status> out_of_memory(std::size_t bytes) {
    return fail(StatusCode::kUnavailable,
                "the host refused " + std::to_string(bytes) +
                    " bytes of memory; free some, or train a smaller model");
  }

  std::size_t threads_;
};

}  // namespace

Result<std::unique_ptr<spi::Device>> make_cpu_device(std::size_t threads) {
  if (threads > kMaxThreads) {
    return fail(StatusCode::kInvalidArgument,
                "a CPU stream cannot have " + std::to_string(threads) +
                    " threads; more than 64 help nobody");
  }
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace stretto::device

// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/factory.hpp"
#include "device/cpu/threaded_stream.hpp"
#include "kernels/kernels.hpp"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace {
std::atomic<std::size_t> allocations{0};
}

// Counts what anybody in this program allocates with new.  Not inlined, or g++ 12 takes the pair
// for mismatched.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace stretto::device {
namespace {

using spi::Operation;

Deadline soon() {
  return Deadline::after(std::chrono::seconds(20));
}

Operation sum_of(std::vector<std::vector<float>>& sources, std::vector<float>& result) {
  Operation operation;
  operation.kind = Operation::Kind::kWeightedSum;
  operation.element_count = result.size();
  operation.destination = reinterpret_cast<std::byte*>(result.data());
  operation.source_count = static_cast<std::uint8_t>(sources.size());
  operation.scale = 0.1F;
  for (std::size_t r = 0; r < sources.size(); ++r) {
    operation.source[r] = reinterpret_cast<const std::byte*>(sources[r].data());
    operation.weight[r] = static_cast<float>(r + 3);
  }
  return operation;
}

TEST(CpuDevice, SharingAnOperationAmongThreadsChangesNoBit) {
  std::mt19937 random(7);
  for (const std::size_t n : {0U, 1U, 16384U, 16385U, 49157U, 300007U}) {
    std::vector<std::vector<float>> sources(3, std::vector<float>(n));
    for (auto& source : sources) {
      for (auto& value : source) {
        value = static_cast<float>(random()) / 1e6F - 2000.0F;
      }
    }
    std::vector<float> expected(n);
    kernels::run(sum_of(sources, expected));
    for (const std::size_t threads : {0U, 1U, 2U, 3U, 5U}) {
      std::vector<float> result(n, -1);
      auto device = make_cpu_device(threads).value();
      auto end = device->make_event().value();
      auto stream = device->make_stream().value();
      ASSERT_TRUE(stream->post(sum_of(sources, result)).is_ok());
      ASSERT_TRUE(stream->record(*end).is_ok());
      ASSERT_TRUE(end->wait(soon()).is_ok());
      ASSERT_TRUE(n == 0 || std::memcmp(result.data(), expected.data(), n * sizeof(float)) == 0)
          << n << " elements on " << threads << " threads";
    }
  }
}

TEST(CpuDevice, PostingRecordingAndRefusingAllocateNothing) {
  for (const std::size_t threads : {0U, 1U, 3U}) {
    // Before the stream, which may end with work in its ring: the last record may have been
    // refused.
    std::vector<std::vector<float>> sources(2, std::vector<float>(40000, 1));
    std::vector<float> result(40000);
    auto device = make_cpu_device(threads).value();
    auto end = device->make_event().value();
    auto stream = device->make_stream().value();
    const Operation operation = sum_of(sources, result);
    std::size_t refused = 0;
    const auto round = [&](std::size_t posts) {
      for (std::size_t i = 0; i < posts; ++i) {
        refused += stream->post(operation).is_ok() ? 0U : 1U;
        static_cast<void>(stream->record(*end));
        static_cast<void>(stream->wait_for(*end));
        stream->drain();
      }
      static_cast<void>(end->wait(soon()));
    };
    round(200);  // whatever is made at first use
    const std::size_t before = allocations.load();
    round(200);
    EXPECT_EQ(allocations.load(), before) << threads << " threads";
    EXPECT_EQ(refused > 0, threads > 0) << "the ring was never full, so refusing was not tried";
  }
}

TEST(CpuDevice, AnInlineStreamDoesNotPassAnEventThatIsNotDone) {
  auto threaded = make_cpu_device(1).value();
  auto made = threaded->make_event().value();
  auto first = threaded->make_stream().value();
  auto immediate = make_cpu_device(0).value()->make_stream().value();
  std::vector<std::vector<float>> sources(2, std::vector<float>(4'000'000, 1));
  std::vector<float> result(4'000'000);
  ASSERT_TRUE(first->post(sum_of(sources, result)).is_ok());
  ASSERT_TRUE(first->record(*made).is_ok());
  Status status = immediate->wait_for(*made);
  while (status.code() == StatusCode::kWouldBlock) {
    status = immediate->wait_for(*made);
  }
  ASSERT_TRUE(status.is_ok());
  EXPECT_TRUE(made->done());
  EXPECT_EQ(result.back(), (3.0F + 4.0F) * 0.1F);
}

TEST(CpuDevice, TooManyThreadsAreRefused) {
  EXPECT_EQ(make_cpu_device(65).error().code(), StatusCode::kInvalidArgument);
}

TEST(CpuDevice, AnEventOfAnotherDeviceCannotBeRecorded) {
  class Foreign final : public spi::Event {
   public:
    bool done() const noexcept override { return open; }
    Status wait(Deadline deadline) override {
      return deadline.passed() && !open ? Status(StatusCode::kDeadlineExceeded, "shut") : Status();
    }
    std::atomic<bool> open{false};
  };
  for (const std::size_t threads : {0U, 1U}) {
    auto device = make_cpu_device(threads).value();
    Foreign foreign;
    auto stream = device->make_stream().value();
    EXPECT_EQ(stream->record(foreign).code(), StatusCode::kInvalidArgument);
  }
  // But it can be waited for.
  auto device = make_cpu_device(2).value();
  Foreign foreign;
  auto end = device->make_event().value();
  auto stream = device->make_stream().value();
  ASSERT_TRUE(stream->wait_for(foreign).is_ok());
  ASSERT_TRUE(stream->record(*end).is_ok());
  EXPECT_FALSE(end->done());
  EXPECT_EQ(end->wait(Deadline::after(std::chrono::nanoseconds(0))).code(),
            StatusCode::kDeadlineExceeded);
  foreign.open = true;
  EXPECT_TRUE(end->wait(soon()).is_ok());
}

}  // namespace
}  // namespace stretto::device

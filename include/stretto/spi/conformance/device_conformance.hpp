// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/device.hpp"
#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>

// What every implementation of spi::Device, Stream, Event and Buffer has to do.  The cases make
// events before streams, because an event outlives what it was recorded on.  Use:
//
//   INSTANTIATE_TEST_SUITE_P(Mine, stretto::spi::DeviceConformance,
//                            testing::Values(stretto::spi::DeviceFactory{"mine", make_mine}),
//                            stretto::spi::device_factory_name);

namespace stretto::spi {

/// One device under test.
struct DeviceFactory {
  std::string name;  ///< letters, digits and underscores
  std::function<Result<std::unique_ptr<Device>>()> make;
};

/// Prints parameters by name.
inline void PrintTo(const DeviceFactory& factory, std::ostream* out) {
  *out << factory.name;
}
inline std::string device_factory_name(const testing::TestParamInfo<DeviceFactory>& test) {
  return test.param.name;
}

/// The suite.  Each case is named after the sentence of the contract that it checks.
class DeviceConformance : public testing::TestWithParam<DeviceFactory> {
 protected:
  using Kind = Operation::Kind;

  void SetUp() override {
    auto made = GetParam().make();
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    device_ = std::move(*made);
    RecordProperty("device", std::string(device_->name()));
    std::cout << "device: " << device_->name() << '\n';
    if (!device_->host_accessible()) {
      GTEST_SKIP() << "the suite needs buffers that the host can read";
    }
  }

  static Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

  /// A buffer of float32, seen as such.
  struct Floats {
    explicit Floats(std::unique_ptr<Buffer> made) : buffer(std::move(made)) {}
    float* begin() const { return reinterpret_cast<float*>(buffer->data()); }
    float& operator[](std::size_t i) const { return begin()[i]; }
    std::byte* data() const { return buffer->data(); }
    std::unique_ptr<Buffer> buffer;
  };

  std::unique_ptr<Buffer> allocate(std::size_t bytes) const {
    auto made = device_->allocate(bytes);
    EXPECT_TRUE(made.has_value()) << made.error().to_string();
    return std::move(*made);
  }
  Floats floats(std::size_t n, float value = 0) const {
    Floats made(allocate(n * sizeof(float)));
    std::fill_n(made.begin(), n, value);
    return made;
  }
  std::unique_ptr<Stream> stream() const {
    auto made = device_->make_stream();
    EXPECT_TRUE(made.has_value()) << made.error().to_string();
    return std::move(*made);
  }
  std::unique_ptr<Event> event() const {
    auto made = device_->make_event();
    EXPECT_TRUE(made.has_value()) << made.error().to_string();
    return std::move(*made);
  }

  /// Repeats a call for as long as it says kWouldBlock, and asks `asked` in between.
  template <typename Call>
  static void insist(Call call, const Event* asked = nullptr) {
    const Deadline deadline = soon();
    Status status = call();
    while (status.code() == StatusCode::kWouldBlock && !deadline.passed()) {
      if (asked != nullptr) {
        static_cast<void>(asked->done());
      }
      status = call();
    }
    ASSERT_TRUE(status.is_ok()) << status.to_string();
  }
  static void post(Stream& stream, const Operation& operation) {
    insist([&] { return stream.post(operation); });
  }
  static void record(Stream& stream, Event& event) {
    insist([&] { return stream.record(event); });
  }
  static void finish(Stream& stream, Event& event) {
    record(stream, event);
    const Status status = event.wait(soon());
    ASSERT_TRUE(status.is_ok()) << status.to_string();
    ASSERT_TRUE(event.done());
  }

  static Operation zero(std::byte* destination, std::size_t n) {
    Operation operation;
    operation.destination = destination;
    operation.element_count = n;
    return operation;
  }
  static Operation copy(std::byte* destination, const std::byte* source, std::size_t n) {
    Operation operation = zero(destination, n);
    operation.kind = Kind::kCopy;
    operation.source_count = 1;
    operation.source[0] = source;
    return operation;
  }
  static Operation accumulate(std::byte* destination, const std::byte* source, std::size_t n) {
    Operation operation = copy(destination, source, n);
    operation.kind = Kind::kAccumulate;
    return operation;
  }

  std::unique_ptr<Device> device_;
};

TEST_P(DeviceConformance, BuffersAreAlignedTo64BytesAndZeroed) {
  for (const std::size_t bytes : {1U, 63U, 64U, 4097U, 1000000U}) {
    const auto buffer = allocate(bytes);
    EXPECT_EQ(buffer->size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 64, 0U) << bytes;
    const auto* begin = buffer->data();
    EXPECT_TRUE(std::all_of(begin, begin + bytes, [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST_P(DeviceConformance, ABufferOfSizeZeroIsLegal) {
  EXPECT_EQ(allocate(0)->size(), 0U);
}

TEST_P(DeviceConformance, MemoryThatIsNotThereIsAnErrorAndNotACrash) {
  const auto made = device_->allocate(~std::size_t{0} - 63);
  ASSERT_FALSE(made.has_value());
  EXPECT_FALSE(made.error().message().empty());
}

TEST_P(DeviceConformance, AnEventIsDoneIfNeverRecorded) {
  const auto never = event();
  EXPECT_TRUE(never->done());
  EXPECT_TRUE(never->wait(Deadline::after(std::chrono::nanoseconds(0))).is_ok());
}

TEST_P(DeviceConformance, ZeroCopyAndAccumulateDoWhatTheySay) {
  const auto end = event();
  const auto line = stream();
  constexpr std::size_t kCount = 1025;
  const Floats a = floats(kCount, 3);
  const Floats b = floats(kCount, 4);
  const Floats c = floats(kCount, 5);
  post(*line, zero(a.data(), kCount - 1));
  post(*line, copy(c.data(), b.data(), kCount - 1));
  post(*line, accumulate(a.data(), c.data(), kCount));
  finish(*line, *end);
  EXPECT_EQ(a[0], 4);
  EXPECT_EQ(a[kCount - 2], 4);
  EXPECT_EQ(a[kCount - 1], 8) << "3 was not zeroed, 5 was not copied over";
}

TEST_P(DeviceConformance, CopyIsBitByBit) {
  constexpr std::array<std::uint32_t, 5> kBits{
      0x7f800001, 0xffc12345, 0x80000000, 0x00000001, 0x7f800000};
  const auto end = event();
  const auto line = stream();
  const auto from = allocate(sizeof kBits);
  const auto to = allocate(sizeof kBits);
  std::memcpy(from->data(), kBits.data(), sizeof kBits);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    std::memset(to->data(), 0, sizeof kBits);
    Operation operation = copy(to->data(), from->data(), sizeof kBits / size_of(dtype));
    operation.dtype = dtype;
    post(*line, operation);
    finish(*line, *end);
    EXPECT_EQ(std::memcmp(to->data(), kBits.data(), sizeof kBits), 0) << to_string(dtype);
  }
}

TEST_P(DeviceConformance, AWeightedSumIsAddedInOrderInFloat32AndScaledAtTheEnd) {
  const auto end = event();
  const auto line = stream();
  constexpr std::size_t kCount = 4099;
  for (const std::size_t sources : {1U, 2U, 3U, 4U, 7U, 16U}) {
    std::vector<Floats> source;
    const Floats result = floats(kCount);
    Operation operation = zero(result.data(), kCount);
    operation.kind = Kind::kWeightedSum;
    operation.scale = 1.0F / 3.0F;
    operation.source_count = static_cast<std::uint8_t>(sources);
    for (std::size_t r = 0; r < sources; ++r) {
      source.push_back(floats(kCount));
      for (std::size_t i = 0; i < kCount; ++i) {
        source[r][i] = static_cast<float>(i * 31 + r * 17) / 7.0F - 300.0F;
      }
      operation.source[r] = source[r].data();
      operation.weight[r] = static_cast<float>(r + 1);
    }
    post(*line, operation);
    finish(*line, *end);
    for (std::size_t i = 0; i < kCount; ++i) {
      volatile float total = operation.weight[0] * source[0][i];  // volatile: rounded each time
      for (std::size_t r = 1; r < sources; ++r) {
        volatile float product = operation.weight[r] * source[r][i];
        total = total + product;
      }
      ASSERT_EQ(result[i], total * operation.scale) << "element " << i << " of " << sources;
    }
  }
}

TEST_P(DeviceConformance, ASumOfMoreThanSixteenGoesOnInTheAccumulator) {
  const auto end = event();
  const auto line = stream();
  constexpr std::size_t kCount = 1000;
  const Floats one = floats(kCount, 1);
  const Floats result = floats(kCount, -1);
  const Floats accumulator = floats(kCount, 100);
  Operation operation = zero(result.data(), kCount);
  operation.kind = Kind::kWeightedSum;
  operation.accumulator = accumulator.begin();
  operation.source_count = kMaxSources;
  operation.source.fill(one.data());
  operation.weight.fill(2);
  operation.finishes = false;
  post(*line, operation);
  operation.begins = false;
  post(*line, operation);
  operation.finishes = true;
  operation.source_count = 1;
  operation.scale = 0.5F;
  post(*line, operation);
  finish(*line, *end);
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(result[i], 33) << i;
  }
}

TEST_P(DeviceConformance, HalvesAreAddedInFloat32AndRoundedOnce) {
  // 1 + 3 * 2^-10 in thirds: in float16 each sum of two would be rounded, in float32 none is.
  const auto end = event();
  const auto line = stream();
  struct Case {
    DType dtype;
    std::uint16_t one;
    std::uint16_t below_last_place;  // half of one's last place
    std::uint16_t expected;          // one + its last place
  };
  for (const Case& c : {Case{DType::kFloat16, 0x3c00, 0x1000, 0x3c01},
                        Case{DType::kBFloat16, 0x3f80, 0x3b80, 0x3f81}}) {
    constexpr std::size_t kCount = 33;
    const auto one = allocate(kCount * 2);
    const auto tiny = allocate(kCount * 2);
    const auto result = allocate(kCount * 2);
    for (std::size_t i = 0; i < kCount; ++i) {
      std::memcpy(one->data() + 2 * i, &c.one, 2);
      std::memcpy(tiny->data() + 2 * i, &c.below_last_place, 2);
    }
    Operation operation = zero(result->data(), kCount);
    operation.kind = Kind::kWeightedSum;
    operation.dtype = c.dtype;
    operation.source_count = 3;
    operation.source = {one->data(), tiny->data(), tiny->data()};
    operation.weight.fill(1);
    post(*line, operation);
    finish(*line, *end);
    for (std::size_t i = 0; i < kCount; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, result->data() + 2 * i, 2);
      ASSERT_EQ(bits, c.expected) << to_string(c.dtype) << ", element " << i;
    }
  }
}

TEST_P(DeviceConformance, AnOperationOnNothingIsLegal) {
  const auto end = event();
  const auto line = stream();
  for (const Kind kind : {Kind::kZero, Kind::kCopy, Kind::kAccumulate, Kind::kWeightedSum}) {
    Operation operation;
    operation.kind = kind;
    operation.source_count = 1;
    post(*line, operation);
  }
  finish(*line, *end);
}

TEST_P(DeviceConformance, OperationsRunInPostingOrder) {
  const auto end = event();
  const auto line = stream();
  const Floats a = floats(64, 1);
  const Floats b = floats(64, 0);
  // a, b -> a + b, b -> a + b, a + 2b: Fibonacci numbers, which any other order would miss.
  for (int i = 0; i < 12; ++i) {
    post(*line, accumulate(b.data(), a.data(), 64));
    post(*line, accumulate(a.data(), b.data(), 64));
  }
  finish(*line, *end);
  EXPECT_EQ(b[0], 46368);
  EXPECT_EQ(a[63], 75025);
}

TEST_P(DeviceConformance, ACallRunsAsAWholeInPostingOrder) {
  const auto end = event();
  const auto line = stream();
  const Floats numbers = floats(64, 3);
  struct Sum {
    const float* begin;
    float result;
    int calls;
  } sum{numbers.begin(), 0, 0};
  Operation call;
  call.kind = Kind::kCall;
  call.element_count = 1 << 20;  // however large it says that it is
  call.argument = &sum;
  call.call = [](void* argument) {
    auto& one = *static_cast<Sum*>(argument);
    ++one.calls;
    one.result = std::accumulate(one.begin, one.begin + 64, one.result);
  };
  post(*line, call);
  post(*line, accumulate(numbers.data(), numbers.data(), 64));
  post(*line, call);
  finish(*line, *end);
  EXPECT_EQ(sum.calls, 2);
  EXPECT_EQ(sum.result, 64 * 3 + 64 * 6);
  call.call = nullptr;
  EXPECT_EQ(line->post(call).code(), StatusCode::kInvalidArgument);
}

TEST_P(DeviceConformance, LargeOperationsRunInPostingOrderToo) {
  const auto end = event();
  const auto line = stream();
  constexpr std::size_t kCount = 300007;
  const Floats a = floats(kCount, 1);
  const Floats b = floats(kCount, 0);
  for (int i = 0; i < 4; ++i) {
    post(*line, accumulate(b.data(), a.data(), kCount));
    // Shifted by one: element i needs what another part of the operation before has written.
    post(*line, copy(a.data(), b.data() + sizeof(float), kCount - 1));
  }
  finish(*line, *end);
  for (std::size_t i = 0; i + 8 < kCount; ++i) {
    ASSERT_EQ(a[i], 8) << i;
  }
  EXPECT_EQ(a[kCount - 1], 1);
}

TEST_P(DeviceConformance, WhatDoesNotFitWouldBlockAndGoesThroughLater) {
  const auto end = event();
  const auto line = stream();
  const Floats one = floats(16, 1);
  const Floats sum = floats(16, 0);
  for (int i = 0; i < 3000; ++i) {
    record(*line, *end);
    insist([&] { return line->post(accumulate(sum.data(), one.data(), 16)); }, end.get());
  }
  finish(*line, *end);
  EXPECT_EQ(sum[15], 3000);
}

TEST_P(DeviceConformance, AnEventIsDoneWhenAllThatWasPostedBeforeIsDone) {
  std::vector<std::unique_ptr<Event>> events;
  const auto line = stream();
  const Floats one = floats(5000, 1);
  const Floats sum = floats(5000, 0);
  for (int i = 0; i < 20; ++i) {
    events.push_back(event());
    post(*line, accumulate(sum.data(), one.data(), 5000));
    record(*line, *events.back());
    const Deadline deadline = soon();
    while (!events.back()->done() && !deadline.passed()) {
    }
    ASSERT_TRUE(events.back()->done());
    ASSERT_EQ(sum[0], static_cast<float>(i + 1));
    ASSERT_EQ(sum[4999], static_cast<float>(i + 1));
  }
}

TEST_P(DeviceConformance, AnEventThatIsRecordedAgainIsAboutTheLastRecord) {
  const auto again = event();
  const auto line = stream();
  const Floats one = floats(20000, 1);
  const Floats sum = floats(20000, 0);
  for (int i = 0; i < 30; ++i) {
    post(*line, accumulate(sum.data(), one.data(), 20000));
    record(*line, *again);
  }
  ASSERT_TRUE(again->wait(soon()).is_ok());
  EXPECT_EQ(sum[19999], 30);
}

TEST_P(DeviceConformance, SourcesMayChangeOnceAnEventBehindTheOperationIsDone) {
  const auto end = event();
  const auto line = stream();
  const Floats source = floats(3000, 0);
  const Floats sum = floats(3000, 0);
  float expected = 0;
  for (int i = 1; i <= 25; ++i) {
    std::fill_n(source.begin(), 3000, static_cast<float>(i));
    expected += static_cast<float>(i);
    post(*line, accumulate(sum.data(), source.data(), 3000));
    finish(*line, *end);
  }
  EXPECT_EQ(sum[2999], expected);
}

TEST_P(DeviceConformance, WhatIsPostedAfterWaitForRunsOnlyAfterTheEvent) {
  const auto made = event();
  const auto used = event();
  const auto end = event();
  const auto first = stream();
  const auto second = stream();
  constexpr std::size_t kCount = 50000;
  const Floats seed = floats(kCount, 1);
  const Floats between = floats(kCount, 0);
  const Floats sum = floats(kCount, 0);
  for (int i = 0; i < 15; ++i) {
    post(*first, accumulate(between.data(), seed.data(), kCount));
    record(*first, *made);
    insist([&] { return second->wait_for(*made); }, made.get());
    post(*second, accumulate(sum.data(), between.data(), kCount));
    record(*second, *used);
    insist([&] { return first->wait_for(*used); }, used.get());
  }
  finish(*second, *end);
  EXPECT_EQ(sum[0], 120);  // 1 + 2 + ... + 15
  EXPECT_EQ(sum[kCount - 1], 120);
}

TEST_P(DeviceConformance, WaitingForAnEventThatWasNeverRecordedHoldsNothingUp) {
  const auto never = event();
  const auto end = event();
  const auto line = stream();
  insist([&] { return line->wait_for(*never); });
  finish(*line, *end);
}

TEST_P(DeviceConformance, ADescriptorBecomesReadableWhenRecordedEventsGetDone) {
  const auto end = event();
  const auto line = stream();
  const Floats one = floats(100000, 1);
  const Floats sum = floats(100000, 0);
  for (int i = 0; i < 50; ++i) {
    post(*line, accumulate(sum.data(), one.data(), 100000));
    record(*line, *end);
    if (line->descriptor() < 0) {
      ASSERT_TRUE(end->done()) << "without a descriptor, work is done at once";
      continue;
    }
    const Deadline deadline = soon();
    while (!end->done()) {
      ASSERT_FALSE(deadline.passed());
      pollfd watched{line->descriptor(), POLLIN, 0};
      ASSERT_EQ(::poll(&watched, 1, 20'000), 1) << "slept through an event, round " << i;
      line->drain();
    }
  }
  EXPECT_EQ(sum[99999], 50);
}

TEST_P(DeviceConformance, DrainMakesTheDescriptorUnreadableUntilAnotherEventGetsDone) {
  const auto end = event();
  const auto line = stream();
  finish(*line, *end);
  if (line->descriptor() < 0) {
    SUCCEED() << "work is done at once";
    return;
  }
  pollfd watched{line->descriptor(), POLLIN, 0};
  ASSERT_EQ(::poll(&watched, 1, 20'000), 1);
  line->drain();
  EXPECT_EQ(::poll(&watched, 1, 0), 0);
  finish(*line, *end);
  EXPECT_EQ(::poll(&watched, 1, 20'000), 1);
}

TEST_P(DeviceConformance, AnOperationThatMakesNoSenseIsRefused) {
  const auto line = stream();
  const Floats one = floats(4, 1);
  Operation operation = zero(one.data(), 4);
  operation.kind = Kind::kWeightedSum;
  operation.source_count = kMaxSources + 1;
  EXPECT_EQ(line->post(operation).code(), StatusCode::kInvalidArgument);
  operation.source_count = 0;
  EXPECT_EQ(line->post(operation).code(), StatusCode::kInvalidArgument);
}

TEST_P(DeviceConformance, AStreamCanBeDestroyedWithWorkOutstanding) {
  const Floats one = floats(200000, 1);
  const Floats sum = floats(200000, 0);
  const auto end = event();
  for (int i = 0; i < 20; ++i) {
    const auto line = stream();
    post(*line, accumulate(sum.data(), one.data(), 200000));
    post(*line, accumulate(sum.data(), one.data(), 200000));
    record(*line, *end);
  }
  EXPECT_LE(sum[0], 40);
}

}  // namespace stretto::spi

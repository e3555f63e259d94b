// SPDX-License-Identifier: Apache-2.0
#include "device/adversarial/factory.hpp"

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::device {
namespace {

using spi::Operation;

constexpr std::size_t kCount = 64;
constexpr std::uint64_t kSeeds = 64;

/// One adversarial device with a source of ones, a result of zeros, and one copy to post.
struct Rig {
  explicit Rig(std::uint64_t seed)
      : device(make_adversarial_device(seed).value()),
        source(device->allocate(kCount * sizeof(float)).value()),
        result(device->allocate(kCount * sizeof(float)).value()),
        end(device->make_event().value()),
        stream(device->make_stream().value()) {
    for (std::size_t i = 0; i < kCount; ++i) {
      at(*source, i) = 1;
    }
    copy.kind = Operation::Kind::kCopy;
    copy.element_count = kCount;
    copy.source[0] = source->data();
    copy.destination = result->data();
  }
  static float& at(spi::Buffer& buffer, std::size_t i) {
    return reinterpret_cast<float*>(buffer.data())[i];
  }
  void post(const Operation& operation) {
    while (stream->post(operation).code() == StatusCode::kWouldBlock) {
    }
  }
  void record() {
    while (stream->record(*end).code() == StatusCode::kWouldBlock) {
    }
  }
  void finish() { ASSERT_TRUE(end->wait(Deadline::after(std::chrono::seconds(20))).is_ok()); }

  std::unique_ptr<spi::Device> device;
  std::unique_ptr<spi::Buffer> source;
  std::unique_ptr<spi::Buffer> result;
  std::unique_ptr<spi::Event> end;
  std::unique_ptr<spi::Stream> stream;
  Operation copy;
};

TEST(AdversarialDevice, AResultTakenTooEarlyIsNanUnderSomeSeedsAndThereUnderOthers) {
  std::size_t nan = 0;
  std::size_t there = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Rig rig(seed);
    rig.post(rig.copy);
    rig.record();
    const float taken = Rig::at(*rig.result, kCount - 1);
    nan += std::isnan(taken) ? 1U : 0U;
    there += taken == 1 ? 1U : 0U;
    rig.finish();
    EXPECT_EQ(Rig::at(*rig.result, kCount - 1), 1);
  }
  EXPECT_GT(nan, kSeeds / 4);
  EXPECT_GT(there, kSeeds / 8);
  EXPECT_EQ(nan + there, kSeeds);
}

TEST(AdversarialDevice, ASourceReusedTooEarlyChangesTheResultUnderSomeSeeds) {
  std::size_t changed = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Rig rig(seed);
    rig.post(rig.copy);
    Rig::at(*rig.source, 0) = 2;  // too early
    rig.record();
    rig.finish();
    changed += Rig::at(*rig.result, 0) == 2 ? 1U : 0U;
  }
  EXPECT_GT(changed, kSeeds / 4);
  EXPECT_LT(changed, kSeeds);
}

TEST(AdversarialDevice, PoisonSparesWhatWorkBeforeStillReads) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Rig rig(seed);
    rig.post(rig.copy);
    Operation clear;  // of the source, behind the operation that reads it
    clear.element_count = kCount;
    clear.destination = rig.source->data();
    rig.post(clear);
    rig.record();
    rig.finish();
    EXPECT_EQ(Rig::at(*rig.result, 5), 1) << "seed " << seed;
    EXPECT_EQ(Rig::at(*rig.source, 5), 0) << "seed " << seed;
  }
}

TEST(AdversarialDevice, PoisonIsASignallingNanOfEachDtype) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      Rig rig(seed);
      rig.copy.dtype = dtype;
      rig.post(rig.copy);
      std::uint16_t taken = 0;
      std::memcpy(&taken, rig.result->data(), 2);
      const std::uint16_t poison = dtype == DType::kFloat16 ? 0x7da5 : 0x7fa5;
      EXPECT_TRUE(taken == poison || taken == 0) << seed << ": " << std::hex << taken;
      rig.record();
      rig.finish();
    }
  }
}

TEST(AdversarialDevice, TheSameSeedDoesTheSame) {
  const auto history = [](std::uint64_t seed) {
    Rig rig(seed);
    std::vector<int> answers;
    for (int i = 0; i < 40; ++i) {
      answers.push_back(static_cast<int>(rig.stream->post(rig.copy).code()));
      if (rig.stream->record(*rig.end).is_ok()) {
        answers.push_back(rig.end->done() ? 100 : 101);
      }
    }
    rig.finish();
    return answers;
  };
  EXPECT_EQ(history(5), history(5));
  EXPECT_NE(history(5), history(6));
}

TEST(AdversarialDevice, SaysItsSeed) {
  EXPECT_EQ(make_adversarial_device(42).value()->name(), "adversarial(seed=42)");
}

/// Leaves something outstanding under most seeds.
void leave_outstanding(Rig& rig) {
  for (int i = 0; i < 8; ++i) {
    rig.post(rig.copy);
    rig.record();
  }
}

TEST(AdversarialDeviceDeathTest, FreeingMemoryUnderAnOperationAborts) {
  const auto free_too_early = [] {
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      Rig rig(seed);
      leave_outstanding(rig);
      rig.result.reset();
    }
  };
  EXPECT_DEATH(free_too_early(), "memory_was_freed_under_an_outstanding_operation");
}

TEST(AdversarialDeviceDeathTest, DestroyingAnEventBeforeItsStreamAborts) {
  const auto destroy_too_early = [] {
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      Rig rig(seed);
      leave_outstanding(rig);
      rig.end.reset();
    }
  };
  EXPECT_DEATH(destroy_too_early(), "event_was_destroyed_before_its_stream_was_done");
}

}  // namespace
}  // namespace stretto::device

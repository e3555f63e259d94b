// SPDX-License-Identifier: Apache-2.0
// A stream's thread may be held up between finishing an event and signing that it has: the sign
// then comes when nothing is under way any more, and must not keep the engine awake for ever.
#include "base/file_descriptor.hpp"
#include "base/mutex.hpp"
#include "device/cpu/factory.hpp"
#include "registry/registry.hpp"
#include "tests/threads_as_ranks.hpp"

#include "stretto/engine.hpp"
#include "stretto/spi/device.hpp"

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace stretto {
namespace {

/// The descriptors of all streams that were made.
class Descriptors {
 public:
  void add(int descriptor) {
    const MutexLock lock(mutex_);
    list_.push_back(descriptor);
  }
  void clear() {
    const MutexLock lock(mutex_);
    list_.clear();
  }
  std::vector<int> all() {
    const MutexLock lock(mutex_);
    return list_;
  }

 private:
  Mutex mutex_;
  std::vector<int> list_ STRETTO_GUARDED_BY(mutex_);
};

Descriptors descriptors;

/// Its work is done at once; the sign of it comes only after the next drain.
class LateStream final : public spi::Stream {
 public:
  LateStream(std::unique_ptr<spi::Stream> inner, FileDescriptor bell)
      : inner_(std::move(inner)), bell_(std::move(bell)) {}

  Status post(const spi::Operation& operation) override { return inner_->post(operation); }
  Status record(spi::Event& event) override {
    STRETTO_TRY(inner_->record(event));
    owes_a_sign_ = true;
    return {};
  }
  Status wait_for(spi::Event& event) override { return inner_->wait_for(event); }
  int descriptor() const noexcept override { return bell_.get(); }
  void drain() noexcept override {
    std::uint64_t count = 0;
    static_cast<void>(::read(bell_.get(), &count, sizeof count));
    if (std::exchange(owes_a_sign_, false)) {
      const std::uint64_t one = 1;
      static_cast<void>(::write(bell_.get(), &one, sizeof one));
    }
  }

 private:
  std::unique_ptr<spi::Stream> inner_;
  FileDescriptor bell_;
  bool owes_a_sign_ = false;
};

class LateDevice final : public spi::Device {
 public:
  explicit LateDevice(std::unique_ptr<spi::Device> inner) : inner_(std::move(inner)) {}

  std::string_view name() const noexcept override { return "late"; }
  bool host_accessible() const noexcept override { return true; }
  Result<std::unique_ptr<spi::Stream>> make_stream() override {
    STRETTO_TRY_ASSIGN(auto inner, inner_->make_stream());
    FileDescriptor bell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    descriptors.add(bell.get());
    return std::make_unique<LateStream>(std::move(inner), std::move(bell));
  }
  Result<std::unique_ptr<spi::Event>> make_event() override { return inner_->make_event(); }
  Result<std::unique_ptr<spi::Buffer>> allocate(std::size_t bytes) override {
    return inner_->allocate(bytes);
  }

 private:
  std::unique_ptr<spi::Device> inner_;
};

Result<std::unique_ptr<spi::Device>> make_late_device() {
  STRETTO_TRY_ASSIGN(auto inner, device::make_cpu_device(0));
  return std::make_unique<LateDevice>(std::move(inner));
}

bool all_are_silent() {
  for (const int descriptor : descriptors.all()) {
    pollfd entry{descriptor, POLLIN, 0};
    if (::poll(&entry, 1, 0) != 0) {
      return false;
    }
  }
  return true;
}

class LateSigns : public ::testing::TestWithParam<ExchangeKind> {};

TEST_P(LateSigns, DoNotKeepAnIdleEngineAwake) {
  descriptors.clear();
  registry::replace_device_for_tests(&make_late_device);
  testing::run_ranks(2, [](const std::shared_ptr<Group>& group) {
    EngineOptions options;
    options.exchange = GetParam();
    auto engine = Engine::create(group, options).value();
    ASSERT_TRUE(engine->add_parameter({"weight", {5000}}).has_value());
    ASSERT_TRUE(engine->commit().is_ok());
    const std::vector<float> gradient(5000, 1.0F);
    ASSERT_TRUE(engine->begin_step({}).is_ok());
    ASSERT_TRUE(
        engine->ready(ParameterId{0}, reinterpret_cast<const std::byte*>(gradient.data())).is_ok());
    ASSERT_TRUE(engine->finish_step().has_value());
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    while (!all_are_silent() && !deadline.passed()) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(all_are_silent());
    EXPECT_TRUE(engine->shutdown().is_ok());
  });
  registry::replace_device_for_tests(nullptr);
}

INSTANTIATE_TEST_SUITE_P(Exchanges,
                         LateSigns,
                         ::testing::Values(ExchangeKind::kOwner, ExchangeKind::kShared),
                         [](const auto& kind) { return std::string(to_string(kind.param)); });

}  // namespace
}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
#include "base/system_error.hpp"
#include "device/adversarial/factory.hpp"
#include "device/adversarial/world.hpp"
#include "device/cpu/factory.hpp"

#include <string>
#include <utility>

#include <sys/eventfd.h>

namespace stretto::device {
namespace {

/// Shared by the device and all that it made, which may outlive it.
using SharedWorld = std::shared_ptr<World>;

/// Threading: thread-safe.
class AdversarialEvent final : public spi::Event {
 public:
  explicit AdversarialEvent(SharedWorld world) noexcept : world_(std::move(world)) {}
  ~AdversarialEvent() override { world_->check_unused(*state_); }

  bool done() const noexcept override { return world_->ask(*state_); }
  Status wait(Deadline deadline) override { return world_->wait(*state_, deadline); }

  bool belongs_to(const SharedWorld& world) const noexcept { return world_ == world; }
  EventState& state() noexcept { return *state_; }

 private:
  SharedWorld world_;
  std::unique_ptr<EventState> state_ = std::make_unique<EventState>();
};

/// Threading: confined(one thread at a time posts).
class AdversarialStream final : public spi::Stream {
 public:
  AdversarialStream(SharedWorld world, FileDescriptor wake_up) : world_(std::move(world)) {
    state_.wake_up = std::move(wake_up);
    world_->add(state_);
  }
  ~AdversarialStream() override { world_->remove(state_); }

  Status post(const spi::Operation& operation) override { return world_->post(state_, operation); }
  Status record(spi::Event& event) override {
    AdversarialEvent* own = own_event(event);
    if (own == nullptr) {
      return {StatusCode::kInvalidArgument,
              "an event of another device was recorded on an adversarial stream; make it with "
              "make_event() of the stream's device"};
    }
    return world_->record(state_, own->state());
  }
  Status wait_for(spi::Event& event) override {
    AdversarialEvent* own = own_event(event);
    return world_->wait_for(state_, own == nullptr ? nullptr : &own->state(), &event);
  }
  int descriptor() const noexcept override { return state_.wake_up.get(); }
  void drain() noexcept override { world_->drain(state_); }

 private:
  AdversarialEvent* own_event(spi::Event& event) const noexcept {
    auto* own = dynamic_cast<AdversarialEvent*>(&event);
    return own != nullptr && own->belongs_to(world_) ? own : nullptr;
  }

  SharedWorld world_;
  StreamState state_;
};

/// Threading: immutable; the memory is the user's.
class AdversarialBuffer final : public spi::Buffer {
 public:
  AdversarialBuffer(SharedWorld world, std::unique_ptr<spi::Buffer> memory) noexcept
      : world_(std::move(world)), memory_(std::move(memory)) {}
  ~AdversarialBuffer() override { world_->check_unused(data(), size()); }
  std::byte* data() const noexcept override { return memory_->data(); }
  std::size_t size() const noexcept override { return memory_->size(); }

 private:
  SharedWorld world_;
  std::unique_ptr<spi::Buffer> memory_;
};

/// Threading: thread-safe.
class AdversarialDevice final : public spi::Device {
 public:
  AdversarialDevice(std::uint64_t seed, std::unique_ptr<spi::Device> memory)
      : name_("adversarial(seed=" + std::to_string(seed) + ")"),
        world_(std::make_shared<World>(seed)),
        memory_(std::move(memory)) {}

  std::string_view name() const noexcept override { return name_; }
  bool host_accessible() const noexcept override { return true; }
  Result<std::unique_ptr<spi::Stream>> make_stream() override {
    FileDescriptor wake_up(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!wake_up.is_open()) {
      return fail(system_error("cannot make an eventfd for an adversarial stream"));
    }
    return std::make_unique<AdversarialStream>(world_, std::move(wake_up));
  }
  Result<std::unique_ptr<spi::Event>> make_event() override {
    return std::make_unique<AdversarialEvent>(world_);
  }
  Result<std::unique_ptr<spi::Buffer>> allocate(std::size_t bytes) override {
    STRETTO_TRY_ASSIGN(auto memory, memory_->allocate(bytes));
    return std::make_unique<AdversarialBuffer>(world_, std::move(memory));
  }

 private:
  std::string name_;
  SharedWorld world_;
  std::unique_ptr<spi::Device> memory_;
};

}  // namespace

Result<std::unique_ptr<spi::Device>> make_adversarial_device(std::uint64_t seed) {
  STRETTO_TRY_ASSIGN(auto memory, make_cpu_device(0));
  return std::make_unique<AdversarialDevice>(seed, std::move(memory));
}

}  // namespace stretto::device

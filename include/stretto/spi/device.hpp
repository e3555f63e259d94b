// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/status.hpp"
#include "stretto/types.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace stretto::spi {

/// The most contributions that one Operation adds; more are added in several operations.
inline constexpr std::size_t kMaxSources = 16;

/// One piece of work on a stream: plain data, so that posting it allocates nothing.
struct Operation {
  enum class Kind : std::uint8_t {
    kZero,        ///< destination[i] = 0
    kCopy,        ///< destination[i] = source[0][i], bit by bit
    kAccumulate,  ///< destination[i] += source[0][i]
    /// total[i] = weight[0] * source[0][i] + weight[1] * source[1][i] + ..., in this order,
    /// float32; starts from scratch if `accumulator` is null or `begins`, else goes on from
    /// accumulator[i]; ends in destination[i] = round(total[i] * scale) if `finishes`, else in
    /// accumulator[i].
    kWeightedSum,
    /// call(argument), on a thread of the host, as a whole; it neither throws nor waits.  May name
    /// what it writes as destination.
    kCall,
  };
  Kind kind = Kind::kZero;
  DType dtype = DType::kFloat32;
  bool begins = true;
  bool finishes = true;
  std::uint8_t source_count = 0;
  float scale = 1.0F;
  std::size_t element_count = 0;
  std::byte* destination = nullptr;
  float* accumulator = nullptr;  ///< [element_count]; only for sums of more than kMaxSources
  std::array<const std::byte*, kMaxSources> source{};
  std::array<float, kMaxSources> weight{};
  void (*call)(void* argument) = nullptr;
  void* argument = nullptr;
};

/// A point in a stream's order of work.
///
/// Ownership: whoever made it; may go when every record of it is done and nothing posted waits for
///            it, or when the streams that it was used on are gone.
/// Threading: thread-safe.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  virtual ~Event() = default;

  /// Whether all work before the last record has been done (true if never recorded).  Never blocks.
  virtual bool done() const noexcept = 0;
  /// Blocks until done or the deadline.
  virtual Status wait(Deadline deadline) = 0;
};

/// Runs operations in posting order, beside the thread that posts.
///
/// Threading: confined(one thread at a time posts).    Blocking: never, except where stated.
/// Ownership: memory named by an operation stays valid until an event recorded behind it is done,
///            or the stream is gone.  Destroying a stream gives up what has not begun; events
///            recorded behind that are never done.
/// Errors:    kWouldBlock, poll events and repeat; kInvalidArgument for an operation that makes no
///            sense, or an event that another kind of device made.
class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  /// Posts an operation.
  virtual Status post(const Operation& operation) = 0;
  /// Marks this point: `event` is done when all that was posted before is done.
  virtual Status record(Event& event) = 0;
  /// What is posted from here on runs only after `event`, of whatever stream, is done.
  virtual Status wait_for(Event& event) = 0;
  /// A descriptor that becomes readable when recorded events get done; -1 if work is done at once.
  virtual int descriptor() const noexcept = 0;
  /// Makes the descriptor unreadable until another recorded event gets done.  Call it after waking
  /// up and before asking events, never between asking and sleeping: then no wake-up is lost.
  virtual void drain() noexcept {}
};

/// Memory of a device.
///
/// Ownership: freed with the object.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  virtual ~Buffer() = default;
  virtual std::byte* data() const noexcept = 0;
  virtual std::size_t size() const noexcept = 0;
};

/// Makes streams, events and buffers of one kind of processor.
///
/// Threading: thread-safe.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  virtual std::string_view name() const noexcept = 0;
  /// Whether the processor that runs this program may read and write this device's buffers
  /// directly.
  virtual bool host_accessible() const noexcept = 0;
  virtual Result<std::unique_ptr<Stream>> make_stream() = 0;
  virtual Result<std::unique_ptr<Event>> make_event() = 0;
  /// Memory aligned to 64 bytes, zeroed and touched.  A size of 0 is legal.
  virtual Result<std::unique_ptr<Buffer>> allocate(std::size_t bytes) = 0;
};

}  // namespace stretto::spi

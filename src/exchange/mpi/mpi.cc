// SPDX-License-Identifier: Apache-2.0
#include "exchange/mpi/mpi.hpp"

#include "exchange/mpi/factory.hpp"

#include <algorithm>
#include <chrono>
#include <climits>
#include <string>

namespace stretto::exchange {
namespace {

/// How long a poll may stay away: MPI moves bytes only while somebody calls it.
constexpr auto kPauseWhileBusy = std::chrono::microseconds(50);
/// Even a rank that has all its sums may hold bytes that others wait for.
constexpr auto kPauseWhileIdle = std::chrono::milliseconds(1);

constexpr std::uint64_t kBase = 4096;

}  // namespace

Result<std::unique_ptr<spi::Exchange>> make_mpi_exchange(spi::ControlPlane& control,
                                                         spi::Device& device,
                                                         const MpiExchangeOptions& options) {
  STRETTO_TRY_ASSIGN(const MPI_Comm communicator,
                     join_mpi(control, Deadline::after(options.timeout)));
  if (!device.host_accessible()) {
    return fail(StatusCode::kUnsupported,
                "the exchange mpi needs gradients in the host's memory; choose owner");
  }
  STRETTO_TRY_ASSIGN(auto stream, device.make_stream());
  return std::make_unique<MpiExchange>(communicator, std::move(stream), device);
}

MpiExchange::MpiExchange(MPI_Comm communicator,
                         std::unique_ptr<spi::Stream> stream,
                         spi::Device& device)
    : communicator_(communicator), device_(device), stream_(std::move(stream)) {
  traits_.name = "mpi";
  traits_.order = spi::SumOrder::kNative;
}

MpiExchange::~MpiExchange() {
  if (!requests_.empty()) {
    // MPI may still write to it, and cannot be told to stop.
    static_cast<void>(buffer_.release());
    give_up_mpi();
  }
}

Result<std::unique_ptr<spi::Buffer>> MpiExchange::allocate_arena(spi::Device& device,
                                                                 std::size_t bytes) {
  return device.allocate(bytes);
}

bool MpiExchange::idle() const noexcept {
  return std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.state == Slot::State::kHome;
  });
}

Status MpiExchange::configure(std::span<const spi::ChunkDescription> chunks,
                              std::uint64_t /*plan_hash*/,
                              std::uint32_t /*epoch*/) {
  if (!idle()) {
    return {StatusCode::kInvalidArgument, "the plan cannot change while chunks are in flight"};
  }
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;
  for (const spi::ChunkDescription& chunk : chunks) {
    if (chunk.element_count > INT_MAX - kDigits) {
      return {StatusCode::kInvalidArgument,
              "MPI adds at most 2^31 elements at once; choose smaller chunks"};
    }
    offsets.push_back(bytes);
    bytes += ((chunk.element_count + kDigits) * sizeof(float) + 63) / 64 * 64;
  }
  // Kept if it is enough: plans may come in turn.
  if (buffer_ == nullptr || buffer_->size() < bytes) {
    buffer_.reset();
    STRETTO_TRY_ASSIGN(buffer_, device_.allocate(bytes));
  }
  offsets_ = std::move(offsets);
  table_ = ChunkTable::make(chunks, 1, SIZE_MAX);  // one shard for each chunk
  next_ = 0;
  slots_.assign(chunks.size(), Slot{});
  work_.reset(chunks.size());
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    STRETTO_TRY(work_.add_event(device_, chunk));
  }
  requests_.reserve(chunks.size());
  request_chunks_.reserve(chunks.size());
  completed_.assign(chunks.size(), 0);
  events_ = FixedRing<spi::ExchangeEvent>(2 * chunks.size() + 1);
  return {};
}

Status MpiExchange::submit(const spi::ChunkSubmission& submission) {
  STRETTO_TRY(error_);
  const auto submitted = [this](std::size_t shard, std::uint64_t step) {
    return slots_[table_.chunk_of(shard)].step == step;
  };
  STRETTO_TRY_ASSIGN(const std::size_t count, table_.check(submission, step_, submitted));
  if (count == 0) {
    return {};
  }
  const std::size_t chunk = index_of(submission.chunk);
  Slot& slot = slots_[chunk];
  if (slot.state != Slot::State::kHome) {
    return {StatusCode::kInvalidArgument,
            "chunk " + std::to_string(chunk) + " is still in flight in step " +
                std::to_string(slot.step)};
  }
  step_ = submission.step;
  slot.state = Slot::State::kWeighting;
  slot.step = submission.step;
  slot.samples = submission.samples;
  slot.contribution = submission.contribution;
  slot.result = submission.result;
  write_digits(chunk, submission.samples);
  work_.push(chunk);
  return {};
}

void MpiExchange::write_digits(std::size_t chunk, std::uint64_t samples) {
  float* digits = buffer_of(chunk) + elements(chunk);
  for (std::size_t i = 0; i < kDigits; ++i) {
    digits[i] = static_cast<float>(samples % kBase);
    samples /= kBase;
  }
}

std::uint64_t MpiExchange::read_digits(std::size_t chunk) const {
  const float* digits = buffer_of(chunk) + elements(chunk);
  std::uint64_t samples = 0;
  for (std::size_t i = kDigits; i-- > 0;) {
    samples = samples * kBase + static_cast<std::uint64_t>(digits[i]);
  }
  return samples;
}

Status MpiExchange::post_waiting() {
  return work_.post(
      *stream_, [this](std::size_t chunk) { return post(chunk); }, [](std::size_t) {});
}

/// Contribution to buffer, or buffer to result.
Status MpiExchange::post(std::size_t chunk) {
  const Slot& slot = slots_[chunk];
  const spi::ChunkDescription& description = table_.chunk(chunk).description;
  const bool weighting = slot.state == Slot::State::kWeighting;
  spi::Operation operation;
  operation.element_count = description.element_count;
  operation.dtype = description.dtype;
  if (weighting ? slot.samples == 0 : slot.total_samples == 0) {
    operation.kind = spi::Operation::Kind::kZero;
    operation.dtype = weighting ? DType::kFloat32 : description.dtype;
    operation.destination =
        weighting ? reinterpret_cast<std::byte*>(buffer_of(chunk)) : slot.result;
    return stream_->post(operation);
  }
  operation.kind = spi::Operation::Kind::kWeightedSum;
  operation.accumulator = buffer_of(chunk);
  operation.begins = weighting;
  operation.finishes = !weighting;
  if (weighting) {
    operation.source_count = 1;
    operation.source[0] = slot.contribution;
    operation.weight[0] = static_cast<float>(slot.samples);
  } else {
    operation.destination = slot.result;
    if (description.combine == spi::Combine::kMean) {
      operation.scale = static_cast<float>(1.0 / static_cast<double>(slot.total_samples));
    }
  }
  return stream_->post(operation);
}

void MpiExchange::collect_posted() {
  work_.collect(*stream_, [this](std::size_t chunk) {
    Slot& slot = slots_[chunk];
    if (slot.state == Slot::State::kWeighting) {
      slot.state = Slot::State::kHeld;
      return;
    }
    slot.state = Slot::State::kHome;
    report(chunk, spi::ExchangeEvent::Kind::kResult);
    report(chunk, spi::ExchangeEvent::Kind::kReleased);
  });
}

Status MpiExchange::issue_in_order() {
  for (std::size_t seen = 0; seen < slots_.size(); ++seen) {
    Slot& slot = slots_[next_];
    if (elements(next_) > 0) {  // others are never submitted
      if (slot.state != Slot::State::kHeld) {
        return {};
      }
      MPI_Request request = MPI_REQUEST_NULL;
      const int code = MPI_Iallreduce(MPI_IN_PLACE,
                                      buffer_of(next_),
                                      static_cast<int>(elements(next_) + kDigits),
                                      MPI_FLOAT,
                                      MPI_SUM,
                                      communicator_,
                                      &request);
      if (code != MPI_SUCCESS) {
        return mpi_status(code, "MPI_Iallreduce of chunk " + std::to_string(next_));
      }
      slot.state = Slot::State::kAdding;
      requests_.push_back(request);
      request_chunks_.push_back(static_cast<std::uint32_t>(next_));
    }
    next_ = next_ + 1 == slots_.size() ? 0 : next_ + 1;
  }
  return {};
}

Status MpiExchange::collect_sums() {
  if (requests_.empty()) {
    int arrived = 0;  // nothing ever does: this lets MPI move what others wait for
    return mpi_status(
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator_, &arrived, MPI_STATUS_IGNORE),
        "MPI_Iprobe");
  }
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()),
                                requests_.data(),
                                &count,
                                completed_.data(),
                                MPI_STATUSES_IGNORE);
  if (code != MPI_SUCCESS) {
    return mpi_status(code, "an all-reduce of MPI in step " + std::to_string(step_));
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const std::uint32_t chunk = request_chunks_[static_cast<std::size_t>(completed_[i])];
    slots_[chunk].total_samples = read_digits(chunk);
    slots_[chunk].state = Slot::State::kScaling;
    work_.push(chunk);
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size() && count > 0; ++i) {
    if (requests_[i] != MPI_REQUEST_NULL) {
      requests_[kept] = requests_[i];
      request_chunks_[kept++] = request_chunks_[i];
    }
  }
  if (count > 0) {
    requests_.resize(kept);
    request_chunks_.resize(kept);
  }
  return {};
}

void MpiExchange::report(std::size_t chunk, spi::ExchangeEvent::Kind kind) {
  spi::ExchangeEvent event;
  event.kind = kind;
  event.step = slots_[chunk].step;
  event.chunk = ChunkId{static_cast<std::uint32_t>(chunk)};
  event.shard_count = 1;
  event.samples = slots_[chunk].total_samples;
  events_.push(event);
}

Result<std::size_t> MpiExchange::poll(std::span<spi::ExchangeEvent> events) {
  STRETTO_TRY(error_);
  error_ = post_waiting();
  collect_posted();
  if (error_.is_ok()) {
    error_ = issue_in_order();
  }
  if (error_.is_ok()) {
    error_ = collect_sums();
  }
  if (error_.is_ok()) {
    error_ = post_waiting();
  }
  collect_posted();
  std::size_t reported = 0;
  while (reported < events.size() && !events_.empty()) {
    events[reported++] = events_.front();
    events_.pop();
  }
  if (reported == 0 && !error_.is_ok()) {
    return fail(error_);
  }
  return reported;
}

TimePoint MpiExchange::next_due() const noexcept {
  if (!events_.empty() || work_.has_waiting() || !error_.is_ok()) {
    return TimePoint::min();
  }
  return Clock::now() + (requests_.empty() ? kPauseWhileIdle : kPauseWhileBusy);
}

std::vector<spi::PendingShard> MpiExchange::pending() const {
  std::vector<spi::PendingShard> list;
  for (std::size_t chunk = 0; chunk < slots_.size(); ++chunk) {
    if (slots_[chunk].state != Slot::State::kHome) {
      list.push_back(
          {slots_[chunk].step, ChunkId{static_cast<std::uint32_t>(chunk)}, 0, false, {}});
    }
  }
  return list;
}

}  // namespace stretto::exchange

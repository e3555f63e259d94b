// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/board.hpp"
#include "engine/data_plane.hpp"
#include "engine/progress_thread.hpp"
#include "schedule/layout.hpp"
#include "trace/recorder.hpp"

#include "stretto/engine.hpp"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stretto::engine {

/// The engine as the training thread sees it: it agrees, pushes commands, waits at gates and
/// accounts.
///
/// Threading: as Engine.  Members behind `Order of destruction` are used by the progress thread,
/// which
///            is declared last and so ends first.
class EngineImpl final : public Engine {
 public:
  static constexpr std::uint32_t kEpoch = 1;  ///< of membership, which does not change so far

  EngineImpl(std::shared_ptr<Group> group, const EngineOptions& options)
      : group_(std::move(group)), options_(options) {}
  ~EngineImpl() override;

  Result<ParameterId> add_parameter(ParameterSpec spec) override;
  Status commit() override;
  std::size_t parameter_count() const noexcept override { return users_; }
  const ParameterSpec& parameter(ParameterId id) const override { return specs_[index_of(id)]; }
  std::byte* gradient_slot(ParameterId id) noexcept override;
  std::byte* result(ParameterId id) noexcept override;
  Status broadcast(std::span<std::byte* const> values) override;
  Status begin_step(const StepOptions& options) override;
  Status next_backward() override;
  Status ready(ParameterId id) override { return ready(id, nullptr, nullptr); }
  Status ready(ParameterId id, const std::byte* gradient, spi::Event* produced) override;
  bool taken(ParameterId id) const noexcept override;
  Status wait_gradient(ParameterId id) override;
  Result<StepReport> finish_step() override;
  bool used_by_any(ParameterId id) const noexcept override;
  Status check_replicas(std::span<const std::byte* const> values) override;
  Status save_residuals(const std::string& prefix, std::uint64_t step) override;
  Result<RestoredResiduals> load_residuals(const std::string& prefix,
                                           std::uint64_t step,
                                           std::size_t world_size) override;
  Status discard_residuals() override;
  std::string_view codec(ParameterId id) const override;
  bool codec_owns_momentum() const noexcept override;
  std::uint64_t step() const noexcept override { return step_; }
  const EngineOptions& options() const noexcept override { return options_; }
  std::string describe() const override;
  Status shutdown() override;

 private:
  std::byte* place(const spi::Buffer& arena, ParameterId id) const noexcept;
  Status check_usable(const char* call) const;
  Status agree();
  Status build();
  Status begin(const StepOptions& options, bool broadcast);
  Status park();
  Status resume_with_new_plan();
  Status replan();
  Status change_plan(bool coded);
  Status agree_on_samples(std::uint64_t samples);
  bool has_codecs() const noexcept { return coding_.codecs.size() > 1; }
  /// The failure, once nothing reads the user's memory any more (or after a few seconds).
  Status failure_at_rest();
  /// Waits at the board; on time-out asks the progress thread what was missing.
  Status wait_until(const std::function<bool()>& condition);
  StepReport account(TimePoint end);
  void write_metrics(const StepReport& report);
  void write_trace();

  std::shared_ptr<Group> group_;
  EngineOptions options_;
  std::vector<ParameterSpec> specs_;  ///< the users', then the footer
  std::size_t users_ = 0;
  schedule::Coding coding_;
  schedule::Layout layout_;
  std::vector<std::uint32_t> plan_order_;  ///< that the plan was made for; empty before the first
  bool plan_is_coded_ = true;
  bool committed_ = false;
  bool in_step_ = false;
  bool closed_ = false;
  bool replan_ = false;
  std::uint64_t step_ = 0;
  StepOptions step_options_;
  std::atomic<std::uint32_t> pass_{0};
  TimePoint step_began_{};
  TimePoint last_end_{};
  Intervals waits_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> metrics_{nullptr, &std::fclose};

  // Order of destruction.
  std::vector<std::atomic<std::uint64_t>>
      fired_;  ///< by parameter: step and pass of its last ready
  DataPlane data_;
  std::unique_ptr<Board> board_;
  trace::Recorder progress_trace_{0};
  trace::Recorder training_trace_{0};
  std::unique_ptr<ProgressThread> progress_;
};

}  // namespace stretto::engine

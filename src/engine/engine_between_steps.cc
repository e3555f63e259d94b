// SPDX-License-Identifier: Apache-2.0
// The part of EngineImpl that is at work between steps: plans, broadcasts, the replica check, and
// what codecs keep.
#include "base/hash.hpp"
#include "engine/agreement.hpp"
#include "engine/engine_impl.hpp"
#include "engine/residual_files.hpp"
#include "schedule/plan.hpp"

#include <cstring>

namespace stretto::engine {

Status EngineImpl::park() {
  Command park;
  park.kind = Command::Kind::kPark;
  STRETTO_TRY(progress_->push(park));
  return wait_until([&] { return board_->parked.load(std::memory_order_acquire) == 1; });
}

/// Cuts chunks anew from `plan_order_` and `plan_is_coded_`, while the progress thread is parked.
Status EngineImpl::resume_with_new_plan() {
  const auto plan = schedule::make_plan(layout_, plan_order_, options_.chunk_bytes, plan_is_coded_);
  STRETTO_TRY(progress_->stepper().set_plan(plan, plan_order_, kEpoch));
  Command resume;
  resume.kind = Command::Kind::kResume;
  return progress_->push(resume);
}

/// Values that are broadcast travel as they are, gradients in their codecs: each by a plan of its
/// own.
Status EngineImpl::change_plan(bool coded) {
  STRETTO_TRY(park());
  STRETTO_TRY(
      agree_to_change_plan(group_->control(), step_ + 1, Deadline::after(options_.timeout)));
  plan_is_coded_ = coded;
  return resume_with_new_plan();
}

/// Residuals of another number of ranks become this one's by the samples of the first step.
Status EngineImpl::agree_on_samples(std::uint64_t samples) {
  STRETTO_TRY_ASSIGN(
      const std::uint64_t total,
      agree_on_total(group_->control(), samples, step_ + 1, Deadline::after(options_.timeout)));
  data_.feedback->set_total(total);
  return {};
}

/// Takes rank 0's order of gradients and cuts the arena anew.  Nobody is in flight: a rank enters
/// begin_step only when its step has ended, and the agreement ends only when all have parked.
Status EngineImpl::replan() {
  replan_ = false;
  STRETTO_TRY(park());
  STRETTO_TRY_ASSIGN(auto order,
                     agree_on_order(group_->control(),
                                    progress_->stepper().seen_order(),
                                    step_ + 1,
                                    Deadline::after(options_.timeout)));
  order.push_back(static_cast<std::uint32_t>(users_));  // the footer comes last
  plan_order_ = std::move(order);
  return resume_with_new_plan();
}

Status EngineImpl::broadcast(std::span<std::byte* const> values) {
  if (values.size() != users_) {
    return {StatusCode::kInvalidArgument,
            "broadcast needs the memory of all " + std::to_string(users_) + " parameters"};
  }
  STRETTO_TRY(begin(StepOptions{}, true));
  if (index_of(group_->rank()) == 0) {
    for (std::size_t p = 0; p < users_; ++p) {
      STRETTO_TRY(ready(ParameterId{static_cast<std::uint32_t>(p)}, values[p], nullptr));
    }
  }
  STRETTO_TRY(finish_step());
  for (std::size_t p = 0; p < users_; ++p) {
    const std::size_t bytes = element_count(specs_[p].shape) * size_of(specs_[p].dtype);
    if (bytes > 0) {
      std::memcpy(values[p], result(ParameterId{static_cast<std::uint32_t>(p)}), bytes);
    }
  }
  return {};
}

Status EngineImpl::check_replicas(std::span<const std::byte* const> values) {
  STRETTO_TRY(check_usable("check_replicas"));
  if (in_step_ || values.size() != users_) {
    return {StatusCode::kInvalidArgument,
            "check_replicas is for between steps and needs the memory of all parameters"};
  }
  std::vector<std::uint64_t> hashes(users_);
  for (std::size_t p = 0; p < users_; ++p) {
    hashes[p] = hash_bytes({values[p], element_count(specs_[p].shape) * size_of(specs_[p].dtype)});
  }
  return agree_on_values(group_->control(),
                         std::span(specs_).first(users_),
                         hashes,
                         step_,
                         Deadline::after(options_.timeout));
}

Status EngineImpl::save_residuals(const std::string& prefix, std::uint64_t step) {
  if (!committed_) {
    return {StatusCode::kInvalidArgument, "save_residuals was called before commit"};
  }
  if (!has_codecs()) {
    return {};
  }
  if (in_step_ && board_->failed.load(std::memory_order_acquire)) {
    static_cast<void>(failure_at_rest());
  } else if (in_step_) {
    return {StatusCode::kInvalidArgument,
            "save_residuals was called within a step; call finish_step first"};
  }
  return ResidualFiles(*data_.feedback, specs_, group_->size()).save(prefix, step);
}

Result<RestoredResiduals> EngineImpl::load_residuals(const std::string& prefix,
                                                     std::uint64_t step,
                                                     std::size_t world_size) {
  STRETTO_TRY(check_usable("load_residuals"));
  if (in_step_) {
    return fail(StatusCode::kInvalidArgument,
                "load_residuals was called within a step; call it before the first");
  }
  if (!has_codecs()) {
    return RestoredResiduals{};
  }
  return ResidualFiles(*data_.feedback, specs_, group_->size()).load(prefix, step, world_size);
}

Status EngineImpl::discard_residuals() {
  STRETTO_TRY(check_usable("discard_residuals"));
  if (in_step_) {
    return {StatusCode::kInvalidArgument,
            "discard_residuals was called within a step; call finish_step first"};
  }
  return has_codecs() ? data_.feedback->discard_step() : Status();
}

}  // namespace stretto::engine

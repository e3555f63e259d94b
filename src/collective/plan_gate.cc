// SPDX-License-Identifier: Apache-2.0
#include "collective/plan_gate.hpp"

#include <algorithm>

namespace stretto::collective {

bool PlanGate::passes(const spi::TransportEvent& event) const noexcept {
  return event.kind != spi::TransportEvent::Kind::kAnnounced ||
         (event.header.epoch == epoch_ && event.header.plan_hash == plan_hash_);
}

void PlanGate::open(std::uint32_t epoch, std::uint64_t plan_hash) {
  epoch_ = epoch;
  plan_hash_ = plan_hash;
  const auto due = std::stable_partition(
      kept_.begin(), kept_.end(), [this](const auto& event) { return !passes(event); });
  passing_.insert(passing_.end(), due, kept_.end());
  kept_.erase(due, kept_.end());
}

Result<std::size_t> PlanGate::poll(std::span<spi::TransportEvent> events) {
  std::size_t count = 0;
  while (count < events.size() && !passing_.empty()) {
    events[count++] = passing_.front();
    passing_.pop_front();
  }
  if (count > 0) {
    return count;
  }
  STRETTO_TRY_ASSIGN(const std::size_t came, inner_->poll(events));
  for (std::size_t i = 0; i < came; ++i) {
    if (passes(events[i])) {
      events[count++] = events[i];
    } else {
      kept_.push_back(events[i]);
    }
  }
  return count;
}

}  // namespace stretto::collective

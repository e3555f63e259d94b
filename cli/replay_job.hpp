// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "command.hpp"
#include "payload.hpp"
#include "profile.hpp"
#include "virtual_accelerator.hpp"

#include "stretto/engine.hpp"
#include "stretto/group.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace stretto::cli {

/// What `replay` is told.
struct ReplayOptions {
  std::string profile;
  ReplayScale scale;
  std::string schedule;  // empty: as the environment says; so the next two
  std::string exchange;
  std::string order;
  std::string codec;
  std::size_t steps = 12;
  std::size_t warmup = 4;
  std::uint64_t seed = 1;
  bool per_parameter = false;
};

/// What one rank measured; goes to the others in this form, and comes from other hosts.
struct RankTotals {
  std::uint64_t mismatches = 0;
  std::uint64_t verified_steps = 0;
  double slept_ms = 0;       ///< least of the measured steps
  double wire_mb_total = 0;  ///< with headers, over all steps

  spi::Bytes encode() const;
  static RankTotals decode(std::span<const std::byte> bytes);
};

/// The steps of one rank and what they cost.
///
/// Threading: confined(main thread).
class Replay {
 public:
  Replay(const ReplayOptions& options,
         const Context& context,
         std::vector<ReplayLayer> layers,
         std::shared_ptr<Group> group,
         std::unique_ptr<Engine> engine);

  /// All steps.
  Status run();
  /// Sums over all ranks; the same on all.
  Status gather();
  nlohmann::ordered_json results() const;
  std::uint64_t mismatches() const { return totals_.mismatches; }
  Engine& engine() { return *engine_; }

 private:
  std::size_t rank() const { return index_of(group_->rank()); }
  Status step(std::uint64_t number, bool measured);
  Status compute(std::uint64_t number, bool measured);
  Status verify(std::uint64_t number);
  Status compare_replicas(std::uint64_t hash);
  void show_progress(std::size_t done, std::size_t all) const;

  ReplayOptions options_;
  const Context& context_;
  std::vector<ReplayLayer> layers_;  // output layer first: as parameters are numbered
  std::shared_ptr<Group> group_;     // shared with the engine
  std::unique_ptr<Engine> engine_;
  Payload payload_;
  VirtualAccelerator accelerator_;

  std::vector<double> step_ms_;
  std::vector<double> slept_ms_;
  std::vector<double> exposed_ms_;
  std::vector<double> hidden_ms_;
  std::vector<double> ready_us_;
  std::vector<double> residual_ratio_;
  std::uint64_t payload_bytes_ = 0;  // of measured steps
  std::uint64_t wire_bytes_ = 0;     // of measured steps
  std::uint64_t all_wire_bytes_ = 0;
  double total_ms_ = 0;
  double cpu_s_ = 0;
  RankTotals totals_;
  std::vector<double> wire_mb_by_rank_;
};

}  // namespace stretto::cli

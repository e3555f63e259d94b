// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/transport.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

namespace stretto::collective {

/// A transport that keeps announcements back until the plan that they were made for is taken.
///
/// Ranks take plans one after the other, without meeting: the number of the plan travels as the
/// header's epoch.  Whoever has ended a collective may send for the next plan while another rank
/// is not so far; there the announcements wait here.  What carries the number of the plan at hand
/// and another hash comes from a rank that calls differently: it waits for ever, and the notices
/// (transport_messages.cc) say so.
///
/// Threading: confined(progress).
class PlanGate final : public spi::Transport {
 public:
  explicit PlanGate(std::unique_ptr<spi::Transport> inner) : inner_(std::move(inner)) {}

  /// From now on announcements of this plan pass, those that were kept back first.
  void open(std::uint32_t epoch, std::uint64_t plan_hash);

  Rank rank() const noexcept override { return inner_->rank(); }
  std::size_t size() const noexcept override { return inner_->size(); }
  const spi::TransportTraits& traits() const noexcept override { return inner_->traits(); }
  spi::TransportCounters counters() const noexcept override { return inner_->counters(); }
  Status announce(Rank peer,
                  const spi::MessageHeader& header,
                  std::span<const std::byte> payload,
                  std::uint64_t token) override {
    return inner_->announce(peer, header, payload, token);
  }
  Status accept(Rank peer, spi::MessageId message, std::span<std::byte> buffer) override {
    return inner_->accept(peer, message, buffer);
  }
  Result<std::size_t> poll(std::span<spi::TransportEvent> events) override;
  int descriptor() const noexcept override { return inner_->descriptor(); }
  TimePoint next_due() const noexcept override {
    return passing_.empty() ? inner_->next_due() : TimePoint();
  }
  Status close(Deadline deadline) override { return inner_->close(deadline); }

 private:
  bool passes(const spi::TransportEvent& event) const noexcept;

  std::unique_ptr<spi::Transport> inner_;
  std::uint32_t epoch_ = 0;
  std::uint64_t plan_hash_ = 0;
  std::deque<spi::TransportEvent> kept_;
  std::deque<spi::TransportEvent> passing_;  ///< were kept, and are due
};

}  // namespace stretto::collective

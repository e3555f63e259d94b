// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rendezvous/star_plane.hpp"

namespace stretto::rendezvous {

/// Every other rank's side: one connection to rank 0.
///
/// Threading: as StarPlane.
class Spoke final : public StarPlane {
 public:
  /// Finds rank 0, trying again until the deadline, and is let in (but the others may still be
  /// missing: wait_joined).
  static Result<std::unique_ptr<Spoke>> make(const GroupOptions& options, Deadline deadline);
  /// Begins behind the greeting, over a connection that rank 0 has accepted.
  static Result<std::unique_ptr<Spoke>> take_over(const GroupOptions& options,
                                                  std::unique_ptr<Connection> connection,
                                                  const Accepted& accepted);
  ~Spoke() override { stop(Desk::Goodbye::kSkip); }

 private:
  static std::unique_ptr<Spoke> begin(const GroupOptions& options,
                                      Parts parts,
                                      std::unique_ptr<Connection> connection,
                                      const Accepted& accepted);
  Spoke(GroupOptions options,
        Parts parts,
        std::unique_ptr<Connection> connection,
        const Accepted& accepted);

  void on_frame(Connection& connection, const Frame& frame) override;
  void on_end(Connection& connection, const std::string& how) override;
  void on_turn(TimePoint now) override;
  void on_gather(GatherCall call) override;
  void on_ask_missing(std::uint64_t sequence) override;
  void on_abort(const std::string& text) override;
  void on_goodbye() override;

  void on_notice(FrameKind kind, const Notice& notice);
  /// Sends to rank 0, if it is there.
  void tell(SharedFrame frame);

  Connection* hub_ = nullptr;  // until it is lost or has left
  bool gave_up_ = false;
  TimePoint next_beat_ = Clock::now();
};

}  // namespace stretto::rendezvous

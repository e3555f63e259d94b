// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/event_queue.hpp"
#include "transport/ucx/peer.hpp"
#include "transport/ucx/worker.hpp"

#include "stretto/spi/control.hpp"
#include "stretto/spi/transport.hpp"
#include "stretto/status.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace stretto::transport {

/// One rank's end of a group over UCX.  See make_ucx_transport.
///
/// Threading: confined(progress).
class UcxTransport final : public spi::Transport {
 public:
  UcxTransport(Rank rank, std::uint64_t job, std::unique_ptr<UcxWorker> worker);
  ~UcxTransport() override;

  /// Tells all where this rank is, and returns once everybody has heard from everybody.
  ///
  /// Blocking: until then, or the deadline.
  Status meet(spi::ControlPlane& control, const FlowOptions& flow, Deadline deadline);

  Rank rank() const noexcept override { return rank_; }
  std::size_t size() const noexcept override { return peers_.size(); }
  const spi::TransportTraits& traits() const noexcept override { return traits_; }
  spi::TransportCounters counters() const noexcept override { return counters_; }

  void reserve(std::size_t messages) override;
  Status announce(Rank peer,
                  const spi::MessageHeader& header,
                  std::span<const std::byte> payload,
                  std::uint64_t token) override;
  Status accept(Rank peer, spi::MessageId message, std::span<std::byte> buffer) override;
  Result<std::size_t> poll(std::span<spi::TransportEvent> events) override;
  int descriptor() const noexcept override { return worker_->descriptor(); }
  TimePoint next_due() const noexcept override;
  Status close(Deadline deadline) override;

 private:
  /// A fragment that waits to be fetched.
  struct Arrival {
    UcxPeer* peer = nullptr;
    FrameHead head;
    void* data = nullptr;
    std::byte* place = nullptr;
  };

  static ucs_status_t on_hello(void* self,
                               const void* header,
                               std::size_t header_bytes,
                               void* data,
                               std::size_t bytes,
                               const ucp_am_recv_param_t* param);
  static ucs_status_t on_control(void* self,
                                 const void* header,
                                 std::size_t header_bytes,
                                 void* data,
                                 std::size_t bytes,
                                 const ucp_am_recv_param_t* param);
  static ucs_status_t on_data(void* self,
                              const void* header,
                              std::size_t header_bytes,
                              void* data,
                              std::size_t bytes,
                              const ucp_am_recv_param_t* param);
  Status listen();
  Status connect(spi::ControlPlane& control, const FlowOptions& flow, Deadline deadline);
  UcxPeer* sender_of(std::span<const std::byte>& header);

  Result<UcxPeer*> find(Rank peer) const;
  void progress();
  void wait(std::chrono::milliseconds most);
  void shut(Deadline deadline);
  void fetch_arrivals();
  void flush();
  Status greet(const spi::ControlPlane& control, Deadline deadline);
  Status wait_for_all(spi::ControlPlane& control, Deadline deadline);
  template <typename Predicate>
  bool any_peer(Predicate predicate) const;
  template <typename Visit>
  void each_peer(Visit visit);

  const Rank rank_;
  const Envelope envelope_;
  spi::TransportTraits traits_;
  spi::TransportCounters counters_;
  EventQueue events_;
  std::vector<Arrival> arrivals_;
  std::vector<std::unique_ptr<UcxPeer>> peers_;  // by rank; this rank's own is null
  bool closed_ = false;
  // The last member, so the first to go: as it ends it still calls the peers.
  const std::unique_ptr<UcxWorker> worker_;
};

}  // namespace stretto::transport

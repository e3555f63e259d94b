// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/transport.hpp"

#include "base/byte_order.hpp"
#include "base/fault_point.hpp"
#include "transport/ucx/factory.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

namespace stretto::transport {
namespace {

// One look of poll moves at most so many times, that events are not kept waiting.
constexpr int kLooks = 16;
// Peers that poll confirm a farewell at once; nobody waits long for those that do not.
constexpr auto kFarewell = std::chrono::milliseconds(500);
constexpr auto kNap = std::chrono::milliseconds(1);

std::span<const std::byte> bytes_of(const void* header, std::size_t size) {
  return {static_cast<const std::byte*>(header), size};
}

}  // namespace

UcxTransport::UcxTransport(Rank rank, std::uint64_t job, std::unique_ptr<UcxWorker> worker)
    : rank_(rank), envelope_{job, rank}, worker_(std::move(worker)) {
  traits_.name = "ucx";
  traits_.crosses_hosts = true;
  arrivals_.reserve(1024);
}

/// UCX wants its endpoints closed before their worker; that waits for no peer.
UcxTransport::~UcxTransport() {
  shut(Deadline::after(kFarewell));
}

template <typename Predicate>
bool UcxTransport::any_peer(Predicate predicate) const {
  return std::any_of(peers_.begin(), peers_.end(), [&](const auto& peer) {
    return peer != nullptr && predicate(*peer);
  });
}

template <typename Visit>
void UcxTransport::each_peer(Visit visit) {
  for (const auto& peer : peers_) {
    if (peer != nullptr) {
      visit(*peer);
    }
  }
}

// --- the beginning

Status UcxTransport::meet(spi::ControlPlane& control, const FlowOptions& flow, Deadline deadline) {
  STRETTO_TRY(listen());
  STRETTO_TRY(connect(control, flow, deadline));
  STRETTO_TRY(greet(control, deadline));
  return wait_for_all(control, deadline);
}

Status UcxTransport::connect(spi::ControlPlane& control,
                             const FlowOptions& flow,
                             Deadline deadline) {
  STRETTO_TRY_ASSIGN(const spi::Bytes address, worker_->address());
  ByteWriter writer;
  writer.put(static_cast<std::uint8_t>(worker_->takes_device_memory()));
  writer.put_bytes(address);
  STRETTO_TRY_ASSIGN(const auto blobs,
                     control.all_gather("the UCX addresses", writer.bytes(), deadline));
  traits_.device_memory = std::all_of(blobs.begin(), blobs.end(), [](const spi::Bytes& blob) {
    return ByteReader(blob).get<std::uint8_t>() != 0;
  });
  const UcxShared shared{*worker_, envelope_, events_, counters_, traits_.device_memory};
  for (std::size_t peer = 0; peer < blobs.size(); ++peer) {
    const Rank rank{static_cast<std::uint32_t>(peer)};
    peers_.push_back(rank == rank_ ? nullptr : std::make_unique<UcxPeer>(rank, shared, flow));
  }
  for (std::size_t peer = 0; peer < blobs.size(); ++peer) {
    if (peers_[peer] == nullptr) {
      continue;
    }
    if (blobs[peer].size() < 2) {
      return {StatusCode::kCorruptWire, "rank " + std::to_string(peer) + " sent no UCX address"};
    }
    STRETTO_TRY(peers_[peer]->connect(std::span(blobs[peer]).subspan(1)));
  }
  return {};
}

/// Has UCX call us for each kind of message.
Status UcxTransport::listen() {
  const auto set = [&](LetterKind kind, ucp_am_recv_callback_t callback) {
    ucp_am_handler_param_t param{};
    param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
    param.id = static_cast<unsigned>(kind);
    param.cb = callback;
    param.arg = this;
    param.flags = UCP_AM_FLAG_WHOLE_MSG;
    const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_->get(), &param);
    return status == UCS_OK
               ? Status()
               : ucx_error(StatusCode::kUnavailable, "UCX takes no handler of messages", status);
  };
  STRETTO_TRY(set(LetterKind::kHello, &UcxTransport::on_hello));
  STRETTO_TRY(set(LetterKind::kControl, &UcxTransport::on_control));
  return set(LetterKind::kData, &UcxTransport::on_data);
}

/// Sends a word each way, so that the first gradient finds every endpoint connected.
Status UcxTransport::greet(const spi::ControlPlane& control, Deadline deadline) {
  each_peer([](UcxPeer& peer) { peer.say_hello(); });
  const auto is_away = [](const UcxPeer& peer) { return !peer.is_connected(); };
  while (any_peer(is_away)) {
    STRETTO_TRY(control.health());
    if (deadline.passed()) {
      std::string away;
      each_peer([&](const UcxPeer& peer) {
        if (is_away(peer)) {
          away += (away.empty() ? "rank " : ", rank ") + std::to_string(index_of(peer.rank()));
        }
      });
      return {StatusCode::kDeadlineExceeded,
              "nothing has come over UCX from " + away +
                  "; check that the ranks' interfaces reach each other, or choose the transport "
                  "tcp"};
    }
    wait(kNap);
    // Whoever broke before it had connected is no rank to go on with.
    if (any_peer([](const UcxPeer& peer) { return !peer.is_open(); })) {
      STRETTO_TRY(control.health());
      return {StatusCode::kUnavailable,
              "an endpoint of UCX broke before it was connected; give all ranks an interface of "
              "one network, or choose the transport tcp"};
    }
  }
  return {};
}

/// Goes on moving messages until all ranks have got so far: the others may need it to connect.
Status UcxTransport::wait_for_all(spi::ControlPlane& control, Deadline deadline) {
  std::atomic<bool> done{false};
  Status status;
  std::thread waiting([&] {
    const auto gathered = control.all_gather("the UCX connections", {}, deadline);
    status = gathered ? Status() : gathered.error();
    done.store(true, std::memory_order_release);
  });
  while (!done.load(std::memory_order_acquire)) {
    wait(kNap);
  }
  waiting.join();
  return status;
}

// --- what UCX calls, from within progress

/// The peer that a header names; null, and counted, if it is of another job or of nobody.
UcxPeer* UcxTransport::sender_of(std::span<const std::byte>& header) {
  const auto envelope = open_envelope(header);
  if (!envelope || envelope->job != envelope_.job || index_of(envelope->from) >= peers_.size() ||
      peers_[index_of(envelope->from)] == nullptr) {
    ++counters_.refused;
    return nullptr;
  }
  return peers_[index_of(envelope->from)].get();
}

ucs_status_t UcxTransport::on_hello(void* self,
                                    const void* header,
                                    std::size_t header_bytes,
                                    void* /*data*/,
                                    std::size_t /*bytes*/,
                                    const ucp_am_recv_param_t* /*param*/) {
  auto rest = bytes_of(header, header_bytes);
  if (UcxPeer* const peer = static_cast<UcxTransport*>(self)->sender_of(rest)) {
    peer->on_hello();
  }
  return UCS_OK;
}

ucs_status_t UcxTransport::on_control(void* self,
                                      const void* header,
                                      std::size_t header_bytes,
                                      void* /*data*/,
                                      std::size_t /*bytes*/,
                                      const ucp_am_recv_param_t* /*param*/) {
  auto rest = bytes_of(header, header_bytes);
  if (UcxPeer* const peer = static_cast<UcxTransport*>(self)->sender_of(rest)) {
    peer->on_control(rest);
  }
  return UCS_OK;
}

/// A fragment that is here, or that waits at its sender to be fetched.
ucs_status_t UcxTransport::on_data(void* self,
                                   const void* header,
                                   std::size_t header_bytes,
                                   void* data,
                                   std::size_t bytes,
                                   const ucp_am_recv_param_t* param) {
  auto& transport = *static_cast<UcxTransport*>(self);
  auto rest = bytes_of(header, header_bytes);
  UcxPeer* const peer = transport.sender_of(rest);
  if (peer == nullptr) {
    return UCS_OK;
  }
  const auto head = rest.size() == kFrameHeadBytes
                        ? decode_frame_head(rest.first<kFrameHeadBytes>())
                        : fail(StatusCode::kCorruptWire, "a fragment without its head");
  if (!head) {
    peer->corrupt(head.error());
    return UCS_OK;
  }
  const auto place = peer->on_data(*head, bytes);
  if (!place) {
    return UCS_OK;
  }
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
    std::memcpy(*place, data, bytes);
    peer->arrived(head->message, bytes);
    return UCS_OK;
  }
  transport.arrivals_.push_back({peer, *head, data, *place});
  return UCS_INPROGRESS;  // fetching is not for callbacks
}

// --- moving

Result<UcxPeer*> UcxTransport::find(Rank peer) const {
  if (closed_) {
    return fail(StatusCode::kInvalidArgument, "this rank has closed its transport");
  }
  if (index_of(peer) >= peers_.size() || peer == rank_) {
    return fail(StatusCode::kInvalidArgument,
                "rank " + std::to_string(index_of(peer)) + " is no peer of rank " +
                    std::to_string(index_of(rank_)) + " in a group of " +
                    std::to_string(peers_.size()));
  }
  return peers_[index_of(peer)].get();
}

void UcxTransport::reserve(std::size_t messages) {
  for (const auto& peer : peers_) {
    if (peer) {
      peer->reserve(messages);
    }
  }
}

Status UcxTransport::announce(Rank peer,
                              const spi::MessageHeader& header,
                              std::span<const std::byte> payload,
                              std::uint64_t token) {
  STRETTO_TRY_ASSIGN(UcxPeer* const found, find(peer));
  return found->announce(header, payload, token);
}

Status UcxTransport::accept(Rank peer, spi::MessageId message, std::span<std::byte> buffer) {
  STRETTO_TRY_ASSIGN(UcxPeer* const found, find(peer));
  return found->accept(message, buffer);
}

Result<std::size_t> UcxTransport::poll(std::span<spi::TransportEvent> events) {
  if (!closed_) {
    flush();
    if (events_.empty()) {
      progress();
    }
  }
  return events_.take(events);
}

/// Has the descriptor speak before the caller sleeps.
TimePoint UcxTransport::next_due() const noexcept {
  const bool has_work = !events_.empty() ||
                        any_peer([](const UcxPeer& peer) { return peer.is_dirty(); }) ||
                        !worker_->arm();
  return has_work && !closed_ ? TimePoint() : TimePoint::max();
}

void UcxTransport::progress() {
  for (int look = 0; look < kLooks && worker_->progress(); ++look) {
    fetch_arrivals();
  }
  flush();
}

void UcxTransport::wait(std::chrono::milliseconds most) {
  if (!any_peer([](const UcxPeer& peer) { return peer.is_dirty(); })) {
    worker_->wait(most);
    fetch_arrivals();
  }
  progress();
}

void UcxTransport::fetch_arrivals() {
  // Fetching may complete at once, but it never brings another arrival.
  for (const Arrival& arrival : arrivals_) {
    if (arrival.peer->is_open()) {
      arrival.peer->fetch(arrival.head, arrival.data, arrival.place);
    } else {
      ucp_am_data_release(worker_->get(), arrival.data);
    }
  }
  arrivals_.clear();
}

void UcxTransport::flush() {
  each_peer([](UcxPeer& peer) {
    if (peer.is_dirty()) {
      peer.send();
    }
  });
}

// --- the end

Status UcxTransport::close(Deadline deadline) {
  if (closed_) {
    return {};
  }
  closed_ = true;
  const auto is_moving = [](const UcxPeer& peer) { return peer.is_moving(); };
  while (any_peer(is_moving) && !deadline.passed()) {
    wait(kNap);
  }
  const bool moved = !any_peer(is_moving);
  // What UCX has taken is on its way only while the endpoint is there.
  each_peer([](UcxPeer& peer) { peer.say_bye(); });
  const Deadline farewell(std::min(deadline.when(), Clock::now() + kFarewell));
  while (any_peer(is_moving) && !farewell.passed()) {
    wait(kNap);
  }
  shut(Deadline::after(kFarewell));
  if (!moved) {
    return {StatusCode::kDeadlineExceeded,
            "rank " + std::to_string(index_of(rank_)) +
                " closed its endpoints before its peers had taken all that they accepted"};
  }
  return {};
}

/// Gives the endpoints up; UCX then lets go of all memory, whatever the peers do.
void UcxTransport::shut(Deadline deadline) {
  closed_ = true;
  each_peer([](UcxPeer& peer) { peer.shut(); });
  while (any_peer([](const UcxPeer& peer) { return peer.pending() > 0; }) && !deadline.passed()) {
    wait(kNap);
  }
}

Result<std::unique_ptr<spi::Transport>> make_ucx_transport(spi::ControlPlane& control,
                                                           const UcxOptions& options) {
  STRETTO_TRY(options.validate());
  FlowOptions flow{options.window_bytes, options.fragment_bytes};
  STRETTO_TRY(flow.read_environment());
  STRETTO_TRY(flow.validate());
  fault_point("transport.connect", index_of(control.rank()));
  STRETTO_TRY_ASSIGN(auto worker, UcxWorker::make(options, control.size()));
  auto transport =
      std::make_unique<UcxTransport>(control.rank(), options.job_id, std::move(worker));
  STRETTO_TRY(transport->meet(control, flow, Deadline::after(options.timeout)));
  return std::unique_ptr<spi::Transport>(std::move(transport));
}

}  // namespace stretto::transport

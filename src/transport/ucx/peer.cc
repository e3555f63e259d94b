// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/peer.hpp"

#include <string>

namespace stretto::transport {
namespace {

// More announcements than this wait for UCX; beyond it announce says kWouldBlock.
constexpr std::size_t kMaxControls = 1024;
// Made at the start, so that nothing is allocated between ready() and the last send.
constexpr std::size_t kOperations = 256;

std::string rank_text(Rank rank) {
  return "rank " + std::to_string(index_of(rank));
}

ucp_request_param_t completion(ucp_send_nbx_callback_t callback, void* argument) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = callback;
  param.user_data = argument;
  return param;
}

}  // namespace

UcxPeer::UcxPeer(Rank peer, const UcxShared& shared, const FlowOptions& options)
    : peer_(peer), shared_(shared), incoming_(options), outgoing_(options) {
  free_.reserve(kOperations);
  for (std::size_t i = 0; i < kOperations; ++i) {
    operations_.emplace_back();
    free_.push_back(&operations_.back());
  }
}

Status UcxPeer::connect(std::span<const std::byte> address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;  // without it a dead peer is never noticed
  params.err_handler = {&UcxPeer::on_broken, this};
  const ucs_status_t status = ucp_ep_create(shared_.worker.get(), &params, &endpoint_);
  if (status != UCS_OK) {
    endpoint_ = nullptr;
    return ucx_error(
        StatusCode::kUnavailable,
        "UCX finds no way to " + rank_text(peer_) +
            "; give all ranks an interface of one network, or choose the transport tcp",
        status);
  }
  return {};
}

void UcxPeer::say_hello() {
  Operation& operation = take_operation();
  post(LetterKind::kHello, operation, {});
}

Status UcxPeer::announce(const spi::MessageHeader& header,
                         std::span<const std::byte> payload,
                         std::uint64_t token) {
  if (!is_open()) {
    return lost_;
  }
  if (header.payload_bytes != payload.size() || payload.size() > kMaxPayloadBytes) {
    return {StatusCode::kInvalidArgument,
            "the header says " + std::to_string(header.payload_bytes) +
                " bytes of payload, the payload has " + std::to_string(payload.size())};
  }
  if (controls_ >= kMaxControls || !outgoing_.has_room()) {
    return {StatusCode::kWouldBlock, {}};
  }
  const std::uint64_t number = outgoing_.add(header.priority, payload, token);
  send_control(FrameHead{FrameType::kAnnounce, kMessageHeaderBytes, number, 0}, encode(header));
  if (payload.empty()) {
    ++shared_.counters.messages_sent;
    report(spi::TransportEvent::Kind::kSent, 0, token, header);
  }
  return {};
}

Status UcxPeer::accept(spi::MessageId message, std::span<std::byte> buffer) {
  if (!is_open()) {
    return lost_;
  }
  STRETTO_TRY_ASSIGN(const auto complete,
                     incoming_.accept(static_cast<std::uint64_t>(message), buffer));
  if (complete) {
    report(spi::TransportEvent::Kind::kReceived, static_cast<std::uint64_t>(message), 0, *complete);
  }
  dirty_ = true;
  return {};
}

bool UcxPeer::is_moving() const noexcept {
  return is_open() && (incoming_.accepted() > 0 || outgoing_.moving() > 0 || pending_ > 0);
}

void UcxPeer::report(spi::TransportEvent::Kind kind,
                     std::uint64_t message,
                     std::uint64_t token,
                     const spi::MessageHeader& header) {
  shared_.events.push({kind, peer_, spi::MessageId{message}, token, header});
}

// --- the end

/// Nothing more is sent or taken; the loss is reported when UCX holds nothing of this peer's.
void UcxPeer::fail(const Status& reason, LogLevel level) {
  if (!is_open()) {
    return;
  }
  state_ = State::kFailing;
  lost_ = reason;
  dirty_ = true;
  if (!quiet_) {
    log(level, reason.message());
  }
}

void UcxPeer::broke(ucs_status_t status) {
  const LogLevel level = said_bye_ || heard_bye_ ? LogLevel::kDebug : LogLevel::kWarning;
  fail({StatusCode::kPeerLost,
        "the connection to " + rank_text(peer_) + " broke: " + ucs_status_string(status)},
       level);
}

void UcxPeer::corrupt(const Status& reason) {
  ++shared_.counters.refused;
  fail({StatusCode::kPeerLost,
        rank_text(peer_) + " sent " + std::string(reason.message()) +
            "; its endpoint was given up"});
}

void UcxPeer::say_bye() {
  if (!is_open()) {
    return;
  }
  said_bye_ = true;
  send_control(FrameHead{FrameType::kBye, 0, 0, 0}, {});
  const auto param = completion(&UcxPeer::on_done, this);
  ++pending_;
  ucs_status_ptr_t request = ucp_ep_flush_nbx(endpoint_, &param);
  if (!UCS_PTR_IS_PTR(request)) {
    on_done(nullptr, UCS_PTR_STATUS(request), this);
  }
}

void UcxPeer::shut() {
  quiet_ = true;
  fail({StatusCode::kPeerLost, "this rank has closed its endpoints"});
  send();
}

/// After the farewell, which may have overtaken fragments.
void UcxPeer::part_if_all_has_come() {
  if (!heard_bye_ || !is_open() || incoming_.outstanding() > 0) {
    return;
  }
  const bool somebody_waits = incoming_.open() > 0 || outgoing_.open() > 0 || flights_.size() > 0;
  fail({StatusCode::kPeerLost, rank_text(peer_) + " has left the group"},
       somebody_waits ? LogLevel::kWarning : LogLevel::kDebug);
}

/// Ends what is under way with this peer: UCX completes all of it, most of it with an error.
void UcxPeer::close_endpoint() {
  ucp_ep_h endpoint = endpoint_;
  endpoint_ = nullptr;
  auto param = completion(&UcxPeer::on_done, this);
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ++pending_;
  ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint, &param);
  if (!UCS_PTR_IS_PTR(request)) {
    on_done(nullptr, UCS_OK, this);
  }
}

void UcxPeer::settle() {
  if (endpoint_ != nullptr) {
    close_endpoint();
  }
  dirty_ = false;
  if (pending_ == 0) {
    state_ = State::kGone;
    if (!quiet_) {
      report(spi::TransportEvent::Kind::kPeerLost, 0, 0, {});
    }
  }
}

// --- what UCX calls, always from within progress

void UcxPeer::on_broken(void* self, ucp_ep_h /*endpoint*/, ucs_status_t status) {
  static_cast<UcxPeer*>(self)->broke(status);
}

void UcxPeer::on_sent(void* request, ucs_status_t status, void* operation) {
  ucp_request_free(request);
  auto& done = *static_cast<Operation*>(operation);
  done.peer->sent(done, status);
}

void UcxPeer::on_fetched(void* request,
                         ucs_status_t status,
                         std::size_t /*length*/,
                         void* operation) {
  ucp_request_free(request);
  auto& done = *static_cast<Operation*>(operation);
  done.peer->fetched(done, status);
}

/// A flush or a close; how it ended does not matter.
void UcxPeer::on_done(void* request, ucs_status_t /*status*/, void* self) {
  if (request != nullptr) {
    ucp_request_free(request);
  }
  auto& peer = *static_cast<UcxPeer*>(self);
  --peer.pending_;
  peer.dirty_ = true;
}

// --- input

void UcxPeer::on_control(std::span<const std::byte> frame) {
  if (!is_open()) {
    return;
  }
  const auto head = frame.size() >= kFrameHeadBytes
                        ? decode_frame_head(frame.first<kFrameHeadBytes>())
                        : stretto::fail(StatusCode::kCorruptWire, "a frame that is too short");
  const Status status = head ? handle(*head, frame.subspan(kFrameHeadBytes)) : head.error();
  if (!status.is_ok()) {
    corrupt(status);
  }
}

Status UcxPeer::handle(const FrameHead& head, std::span<const std::byte> body) {
  if (body.size() != head.length) {
    return {StatusCode::kCorruptWire, "a frame of another length than it says"};
  }
  switch (head.type) {
    case FrameType::kAnnounce: {
      STRETTO_TRY_ASSIGN(const auto header,
                         decode_message_header(body.first<kMessageHeaderBytes>()));
      STRETTO_TRY(incoming_.announced(head.message, header));
      report(spi::TransportEvent::Kind::kAnnounced, head.message, 0, header);
      return {};
    }
    case FrameType::kGrant:
      dirty_ = true;
      return outgoing_.granted(head);
    case FrameType::kBye:
      heard_bye_ = true;
      part_if_all_has_come();
      return {};
    case FrameType::kData:
    case FrameType::kCredit:  // expected messages wait for their grant here, like any other
      break;
  }
  return {StatusCode::kCorruptWire, "a frame where there should be none of its type"};
}

Result<std::byte*> UcxPeer::on_data(const FrameHead& head, std::size_t length) {
  if (!is_open()) {
    return stretto::fail(lost_);
  }
  auto place = head.type == FrameType::kData && head.length == length
                   ? incoming_.place_of(head)
                   : stretto::fail(StatusCode::kCorruptWire, "a fragment of another length");
  if (!place) {
    corrupt(place.error());
  }
  return place;
}

void UcxPeer::fetch(const FrameHead& head, void* data, std::byte* place) {
  Operation& operation = take_operation();
  operation.message = head.message;
  operation.bytes = head.length;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = &UcxPeer::on_fetched;
  param.user_data = &operation;
  ++pending_;
  ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(shared_.worker.get(), data, place, head.length, &param);
  if (!UCS_PTR_IS_PTR(request)) {
    fetched(operation, UCS_PTR_STATUS(request));
  }
}

void UcxPeer::fetched(Operation& operation, ucs_status_t status) {
  --pending_;
  dirty_ = true;
  if (status != UCS_OK) {
    broke(status);
  } else if (is_open()) {
    arrived(operation.message, operation.bytes);
  }
  release(operation);
}

void UcxPeer::arrived(std::uint64_t message, std::size_t bytes) {
  dirty_ = true;  // the window may have room for another grant
  shared_.counters.payload_bytes_received += bytes;
  if (const auto header = incoming_.received(message, bytes)) {
    report(spi::TransportEvent::Kind::kReceived, message, 0, *header);
  }
  part_if_all_has_come();
}

// --- output

UcxPeer::Operation& UcxPeer::take_operation() {
  if (free_.empty()) {
    operations_.emplace_back();
    free_.push_back(&operations_.back());
  }
  Operation& operation = *free_.back();
  free_.pop_back();
  operation.peer = this;
  operation.message = 0;
  operation.bytes = 0;
  operation.head.start(shared_.envelope);
  return operation;
}

void UcxPeer::release(Operation& operation) {
  free_.push_back(&operation);
}

void UcxPeer::send_control(const FrameHead& head, std::span<const std::byte> body) {
  Operation& operation = take_operation();
  operation.head.append(encode(head));
  operation.head.append(body);
  post(LetterKind::kControl, operation, {});
}

void UcxPeer::send_fragment(const SendFlow::Fragment& fragment) {
  Flight* flight = flights_.find(fragment.head.message);
  if (flight == nullptr) {
    flight = &flights_.insert(fragment.head.message, Flight{.token = fragment.token});
  }
  ++flight->fragments;
  flight->all_cut = fragment.is_last;
  Operation& operation = take_operation();
  operation.message = fragment.head.message;
  operation.bytes = fragment.head.length;
  operation.head.append(encode(fragment.head));
  post(LetterKind::kData, operation, {fragment.data, fragment.head.length});
}

void UcxPeer::post(LetterKind kind, Operation& operation, std::span<const std::byte> payload) {
  auto param = completion(&UcxPeer::on_sent, &operation);
  if (kind != LetterKind::kData) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_EAGER;  // in order
    ++controls_;
  } else if (shared_.in_device_memory) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_RNDV;
  }
  ++pending_;
  const auto head = operation.head.bytes();
  shared_.counters.wire_bytes_sent += head.size() + payload.size();
  ucs_status_ptr_t request = ucp_am_send_nbx(endpoint_,
                                             static_cast<unsigned>(kind),
                                             head.data(),
                                             head.size(),
                                             payload.data(),
                                             payload.size(),
                                             &param);
  if (!UCS_PTR_IS_PTR(request)) {
    sent(operation, UCS_PTR_STATUS(request));
  }
}

void UcxPeer::sent(Operation& operation, ucs_status_t status) {
  --pending_;
  dirty_ = true;
  if (operation.message == 0) {
    --controls_;
  }
  if (status != UCS_OK) {
    broke(status);
  } else if (operation.message != 0 && is_open()) {
    shared_.counters.payload_bytes_sent += operation.bytes;
    Flight& flight = *flights_.find(operation.message);
    if (--flight.fragments == 0 && flight.all_cut) {
      ++shared_.counters.messages_sent;
      report(spi::TransportEvent::Kind::kSent, 0, flight.token, {});
      flights_.erase(operation.message);
    }
  }
  release(operation);
}

/// Turns room in the window into frames; consecutive grants of one message become one frame.
void UcxPeer::queue_grants() {
  ReceiveFlow::Grant pending;
  const auto flush = [&] {
    if (pending.message != 0) {
      send_control(FrameHead{FrameType::kGrant, 0, pending.message, pending.up_to}, {});
    }
  };
  while (const auto grant = incoming_.next_grant()) {
    if (grant->message != pending.message) {
      flush();
    }
    pending = *grant;
  }
  flush();
}

void UcxPeer::send() {
  dirty_ = false;
  if (is_open()) {
    queue_grants();
  }
  while (is_open()) {
    const auto fragment = outgoing_.next_fragment();
    if (!fragment) {
      break;
    }
    send_fragment(*fragment);
  }
  if (state_ == State::kFailing) {
    settle();
  }
}

}  // namespace stretto::transport

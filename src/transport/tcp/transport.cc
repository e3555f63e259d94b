// SPDX-License-Identifier: Apache-2.0
#include "stretto/spi/transport.hpp"

#include "base/byte_order.hpp"
#include "base/file_descriptor.hpp"
#include "base/system_error.hpp"
#include "transport/event_queue.hpp"
#include "transport/tcp/connection.hpp"
#include "transport/tcp/factory.hpp"
#include "transport/tcp/listener.hpp"
#include "transport/tcp/mesh.hpp"

#include "stretto/spi/control.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace stretto::transport {
namespace {

/// Threading: confined(progress).
class TcpTransport final : public spi::Transport {
 public:
  TcpTransport(Rank rank, FileDescriptor epoll, std::uint64_t refused)
      : rank_(rank), epoll_(std::move(epoll)) {
    traits_.name = "tcp";
    traits_.crosses_hosts = true;
    traits_.refuses_forgery = true;
    counters_.refused = refused;
  }

  /// A window of 0 is for WindowSizer to decide.
  Status adopt(std::vector<FileDescriptor> sockets, const FlowOptions& options);

  Rank rank() const noexcept override { return rank_; }
  std::size_t size() const noexcept override { return connections_.size(); }
  const spi::TransportTraits& traits() const noexcept override { return traits_; }
  spi::TransportCounters counters() const noexcept override { return counters_; }

  void reserve(std::size_t messages) override;
  Status announce(Rank peer,
                  const spi::MessageHeader& header,
                  std::span<const std::byte> payload,
                  std::uint64_t token) override;
  Status accept(Rank peer, spi::MessageId message, std::span<std::byte> buffer) override;
  Result<std::size_t> poll(std::span<spi::TransportEvent> events) override;
  int descriptor() const noexcept override { return epoll_.get(); }
  TimePoint next_due() const noexcept override;
  Status close(Deadline deadline) override;

 private:
  Result<Connection*> find(Rank peer) const;
  Status progress(int timeout_ms);
  void flush();
  void watch(Connection& connection);
  bool is_moving() const noexcept;
  bool is_delivered() const noexcept;

  const Rank rank_;
  FileDescriptor epoll_;
  spi::TransportTraits traits_;
  spi::TransportCounters counters_;
  EventQueue events_;
  std::vector<std::unique_ptr<Connection>> connections_;  // by rank; this rank's own is null
  bool closed_ = false;
};

/// The window of a connection that was just made, when its path is idle still.
WindowSizer sizer_for(int socket, std::size_t window_bytes) {
  if (window_bytes != 0) {
    return WindowSizer(window_bytes);
  }
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) {
    return WindowSizer(std::chrono::nanoseconds(0));
  }
  // The least: the smoothed one has answers in it that the system held back.
  return WindowSizer(std::chrono::microseconds(info.tcpi_min_rtt));
}

Status TcpTransport::adopt(std::vector<FileDescriptor> sockets, const FlowOptions& options) {
  connections_.resize(sockets.size());
  for (std::size_t peer = 0; peer < sockets.size(); ++peer) {
    if (!sockets[peer].is_open()) {
      continue;
    }
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = peer;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, sockets[peer].get(), &event) != 0) {
      return {StatusCode::kUnavailable,
              std::string("cannot watch a connection: ") + std::strerror(errno)};
    }
    const WindowSizer sizer = sizer_for(sockets[peer].get(), options.window_bytes);
    FlowOptions flow = options;
    flow.window_bytes = sizer.window();
    connections_[peer] = std::make_unique<Connection>(Rank{static_cast<std::uint32_t>(peer)},
                                                      std::move(sockets[peer]),
                                                      flow,
                                                      sizer,
                                                      events_,
                                                      counters_);
  }
  return {};
}

Result<Connection*> TcpTransport::find(Rank peer) const {
  if (closed_) {
    return fail(StatusCode::kInvalidArgument, "this rank has closed its transport");
  }
  if (index_of(peer) >= connections_.size() || peer == rank_) {
    return fail(StatusCode::kInvalidArgument,
                "rank " + std::to_string(index_of(peer)) + " is no peer of rank " +
                    std::to_string(index_of(rank_)) + " in a group of " +
                    std::to_string(connections_.size()));
  }
  return connections_[index_of(peer)].get();
}

void TcpTransport::reserve(std::size_t messages) {
  for (const auto& connection : connections_) {
    if (connection) {
      connection->reserve(messages);
    }
  }
  events_.reserve(messages * connections_.size());
}

Status TcpTransport::announce(Rank peer,
                              const spi::MessageHeader& header,
                              std::span<const std::byte> payload,
                              std::uint64_t token) {
  STRETTO_TRY_ASSIGN(Connection* const connection, find(peer));
  return connection->announce(header, payload, token);
}

Status TcpTransport::accept(Rank peer, spi::MessageId message, std::span<std::byte> buffer) {
  STRETTO_TRY_ASSIGN(Connection* const connection, find(peer));
  return connection->accept(message, buffer);
}

Result<std::size_t> TcpTransport::poll(std::span<spi::TransportEvent> events) {
  flush();
  // What waits already fills a small span often enough; then nobody needs the system.
  if (events_.empty() && !closed_) {
    STRETTO_TRY(progress(0));
  }
  return events_.take(events);
}

TimePoint TcpTransport::next_due() const noexcept {
  const bool has_work =
      !events_.empty() ||
      std::any_of(connections_.begin(), connections_.end(), [](const auto& connection) {
        return connection && connection->is_dirty();
      });
  // The clock's epoch is long past; TimePoint::min() would overflow when one subtracts from it.
  return has_work ? TimePoint() : TimePoint::max();
}

/// One look at all sockets: takes what came, gives what can go.
Status TcpTransport::progress(int timeout_ms) {
  std::array<epoll_event, 64> ready;
  const int count =
      ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), timeout_ms);
  if (count < 0 && errno != EINTR) {
    return {StatusCode::kInternal, std::string("epoll_wait: ") + std::strerror(errno)};
  }
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = ready[static_cast<std::size_t>(i)];
    Connection& connection = *connections_[event.data.u64];
    if ((event.events & EPOLLOUT) != 0) {
      connection.writable();
    }
    if ((event.events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) {
      connection.receive();
    }
  }
  flush();
  return {};
}

void TcpTransport::flush() {
  for (const auto& connection : connections_) {
    if (connection && connection->is_dirty()) {
      connection->send();
    }
    if (connection) {
      watch(*connection);
    }
  }
}

/// Has the system say when a socket that refused takes more, and only then.
void TcpTransport::watch(Connection& connection) {
  if (!connection.is_open() || connection.watches_writable == connection.is_blocked()) {
    return;
  }
  connection.watches_writable = connection.is_blocked();
  epoll_event event{};
  event.events = connection.watches_writable ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = index_of(connection.peer());
  static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.descriptor(), &event));
}

bool TcpTransport::is_moving() const noexcept {
  return std::any_of(connections_.begin(), connections_.end(), [](const auto& connection) {
    return connection && connection->is_moving();
  });
}

/// Whether the peers' systems have everything: from then on closing loses nothing.
bool TcpTransport::is_delivered() const noexcept {
  return std::none_of(connections_.begin(), connections_.end(), [](const auto& connection) {
    int unacknowledged = 0;
    return connection && connection->is_open() &&
           ::ioctl(connection->descriptor(), SIOCOUTQ, &unacknowledged) == 0 && unacknowledged > 0;
  });
}

Status TcpTransport::close(Deadline deadline) {
  if (closed_) {
    return {};
  }
  closed_ = true;
  flush();
  while (is_moving() && !deadline.passed()) {
    STRETTO_TRY(progress(1));
  }
  const bool moved = !is_moving();
  for (const auto& connection : connections_) {
    if (connection) {
      connection->say_bye();
    }
  }
  flush();
  while (!(is_delivered() && !is_moving()) && !deadline.passed()) {
    STRETTO_TRY(progress(1));
  }
  const bool delivered = is_delivered();
  for (const auto& connection : connections_) {
    if (connection) {
      connection->shut();
    }
  }
  if (!moved || !delivered) {
    return {StatusCode::kDeadlineExceeded,
            "rank " + std::to_string(index_of(rank_)) +
                " closed its connections before its peers had taken all that they accepted"};
  }
  return {};
}

/// Tells all ranks where this one listens, and learns where they do.
Result<std::vector<SocketAddress>> exchange_addresses(spi::ControlPlane& control,
                                                      const SocketAddress& mine,
                                                      Deadline deadline) {
  ByteWriter writer;
  writer.put_text(mine.host());
  writer.put(mine.port());
  STRETTO_TRY_ASSIGN(const auto blobs,
                     control.all_gather("the data addresses", writer.bytes(), deadline));
  std::vector<SocketAddress> addresses;
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    ByteReader reader(blobs[rank]);
    const std::string host = reader.get_text();
    const auto port = reader.get<std::uint16_t>();
    const auto address = SocketAddress::parse(host, port);
    if (!reader.ok() || !address) {
      return fail(StatusCode::kCorruptWire,
                  "rank " + std::to_string(rank) + " sent no address that can be read");
    }
    addresses.push_back(*address);
  }
  return addresses;
}

}  // namespace

Status TcpOptions::validate() const {
  const std::size_t window = window_bytes == 0 ? WindowSizer::kFloorBytes : window_bytes;
  STRETTO_TRY((FlowOptions{window, fragment_bytes}.validate()));
  if (unsent_bytes > (std::size_t{1} << 30)) {
    return {StatusCode::kInvalidArgument, "more than 1 GiB unsent in the system helps nobody"};
  }
  if (timeout.count() <= 0 || handshake_timeout.count() <= 0) {
    return {StatusCode::kInvalidArgument, "the time-outs must be longer than zero"};
  }
  return {};
}

Result<std::unique_ptr<spi::Transport>> make_tcp_transport(spi::ControlPlane& control,
                                                           const TcpOptions& options) {
  FlowOptions flow{options.window_bytes, options.fragment_bytes, true};
  STRETTO_TRY(flow.read_environment());
  TcpOptions checked = options;
  checked.window_bytes = flow.window_bytes;
  STRETTO_TRY(checked.validate());
  const Deadline deadline = Deadline::after(options.timeout);
  const Identity identity{control.rank(), control.size(), options.job_id, options.token};

  STRETTO_TRY_ASSIGN(SocketAddress local,
                     choose_local_address(options.interface, options.route_to));
  if (options.first_port != 0) {
    const std::size_t port = options.first_port + index_of(identity.rank);
    if (port > 65535) {
      return fail(StatusCode::kInvalidArgument,
                  "port " + std::to_string(port) + " does not exist; choose a lower first port");
    }
    local.set_port(static_cast<std::uint16_t>(port));
  }
  STRETTO_TRY_ASSIGN(const Listener listener, Listener::open(local));
  STRETTO_TRY_ASSIGN(const auto addresses,
                     exchange_addresses(control, listener.address(), deadline));
  Mesh mesh(listener,
            identity,
            addresses,
            {options.handshake_timeout, {options.unsent_bytes, options.congestion}});
  STRETTO_TRY_ASSIGN(auto sockets, mesh.connect(control, deadline));

  FileDescriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.is_open()) {
    return fail(system_error("cannot make an epoll descriptor"));
  }
  auto transport = std::make_unique<TcpTransport>(identity.rank, std::move(epoll), mesh.refused());
  STRETTO_TRY(transport->adopt(std::move(sockets), flow));
  return std::unique_ptr<spi::Transport>(std::move(transport));
}

}  // namespace stretto::transport

// SPDX-License-Identifier: Apache-2.0
// The part of TransportCommunicator that moves what is not added: who sends what to whom, and where
// it goes.  Hops and pieces travel in the header's shard and chunk.
#include "collective/transport_communicator.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace stretto::collective {
namespace {

// Pieces of a broadcast: below this a header costs more than the overlap of the two hops saves.
constexpr std::size_t kLeastPiece = std::size_t{64} << 10;

constexpr std::uint32_t kFromRoot = 0;   ///< to be forwarded
constexpr std::uint32_t kForwarded = 1;  ///< for the receiver alone

}  // namespace

void TransportCommunicator::begin_all_gather() {
  const Job& job = jobs_.front();
  const std::size_t bytes = job.call.count;
  std::byte* const own = job.output + rank() * bytes;
  if (bytes == 0) {
    return;
  }
  if (own != job.input) {
    std::memcpy(own, job.input, bytes);
  }
  for (std::size_t steps = 1; steps < size(); ++steps) {
    send_data(after(steps), kForwarded, 0, {own, bytes});
    peers_[after(steps)].to_come = 1;
  }
}

/// Whether the root of this broadcast sends to everyone.
bool TransportCommunicator::is_direct() const noexcept {
  return size() == 2 || call().count <= options_.one_hop_bytes;
}

std::size_t TransportCommunicator::piece_bytes() const noexcept {
  const std::size_t bytes = call().count;
  return is_direct() ? bytes : std::max(options_.chunk_bytes_for(bytes), kLeastPiece);
}

/// Who gets a piece from the root, to forward it to the others.
std::size_t TransportCommunicator::forwarder_of(std::size_t piece) const noexcept {
  return (call().root + 1 + piece % (size() - 1)) % size();
}

std::span<std::byte> TransportCommunicator::piece_at(std::size_t piece) const noexcept {
  const std::size_t first = piece * piece_bytes();
  return {jobs_.front().output + first, std::min<std::size_t>(piece_bytes(), call().count - first)};
}

void TransportCommunicator::begin_broadcast() {
  if (call().count == 0 || size() == 1) {
    return;
  }
  const std::size_t pieces = (call().count + piece_bytes() - 1) / piece_bytes();
  const bool is_root = rank() == call().root;
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    if (!is_root) {
      const std::size_t from = forwarder_of(piece);
      ++peers_[is_direct() || from == rank() ? call().root : from].to_come;
    } else if (!is_direct()) {
      send_data(forwarder_of(piece), kFromRoot, piece, piece_at(piece));
    }
  }
  for (std::size_t steps = 1; is_root && is_direct() && steps < size(); ++steps) {
    send_data(after(steps), kForwarded, 0, piece_at(0));
  }
}

void TransportCommunicator::begin_barrier() {
  rounds_ = 0;
  rounds_come_ = 0;
  for (std::size_t distance = 1; distance < size(); distance *= 2) {
    ++peers_[after(size() - distance)].to_come;
  }
  if (size() > 1) {
    send_data(after(1), 0, 0, {});
  }
}

void TransportCommunicator::send_data(std::size_t peer,
                                      std::uint32_t hop,
                                      std::size_t piece,
                                      std::span<const std::byte> payload) {
  Outgoing message{header_of(Use::kData, number(), call()), payload};
  message.header.payload_bytes = payload.size();
  message.header.shard = hop;
  message.header.chunk = static_cast<std::uint32_t>(piece);
  message.header.priority = message.header.chunk;
  ++peers_[peer].to_go;
  peers_[peer].sends.push_back(message);
}

/// Where a message of the collective under way goes; nothing if there is no such message.
std::optional<std::span<std::byte>> TransportCommunicator::place_of(
    std::size_t peer, const spi::MessageHeader& header) const noexcept {
  if (peers_[peer].to_come == 0) {
    return std::nullopt;
  }
  const std::size_t bytes = call().count;
  std::span<std::byte> place;
  if (call().kind == Kind::kBarrier) {
    const std::size_t distance = std::size_t{1} << (header.shard % 63);
    if (distance >= size() || after(size() - distance) != peer) {
      return std::nullopt;
    }
  } else if (call().kind == Kind::kAllGather) {
    place = {jobs_.front().output + peer * bytes, bytes};
  } else {
    const bool to_forward = header.shard == kFromRoot;
    const std::size_t pieces = (bytes + piece_bytes() - 1) / piece_bytes();
    if (header.chunk >= pieces || (to_forward && forwarder_of(header.chunk) != rank())) {
      return std::nullopt;
    }
    const bool from_root = is_direct() || to_forward;
    if (peer != (from_root ? call().root : forwarder_of(header.chunk))) {
      return std::nullopt;
    }
    place = piece_at(header.chunk);
  }
  return place.size() == header.payload_bytes ? std::optional(place) : std::nullopt;
}

/// Goes on from what has come.
void TransportCommunicator::arrived(const spi::MessageHeader& header) {
  if (call().kind == Kind::kBroadcast && header.shard == kFromRoot) {
    for (std::size_t steps = 1; steps < size(); ++steps) {
      if (after(steps) != call().root) {
        send_data(after(steps), kForwarded, header.chunk, piece_at(header.chunk));
      }
    }
  }
  if (call().kind == Kind::kBarrier) {
    rounds_come_ |= std::uint64_t{1} << (header.shard % 63);
    while ((rounds_come_ >> rounds_ & 1U) != 0) {
      ++rounds_;
      if (const std::size_t distance = std::size_t{1} << rounds_; distance < size()) {
        send_data(after(distance), static_cast<std::uint32_t>(rounds_), 0, {});
      }
    }
  }
}

bool TransportCommunicator::all_moved() const noexcept {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
    return peer.to_go == 0 && peer.to_come == 0;
  });
}

}  // namespace stretto::collective

// SPDX-License-Identifier: Apache-2.0
#include "collective/sub_group.hpp"

#include "base/byte_order.hpp"
#include "registry/registry.hpp"
#include "rendezvous/words.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <tuple>
#include <utility>

#include <poll.h>

namespace stretto::collective {
namespace {

// A sleeper looks around this often even if nobody rings: it only bounds the harm of a missed sign.
constexpr auto kNap = std::chrono::milliseconds(100);
// A purpose and its length in front of a blob.
constexpr std::size_t kMostMessageBytes =
    rendezvous::kMostGatheredBytes + rendezvous::kMostWhatBytes + sizeof(std::uint32_t);

std::string name_of(std::size_t rank) {
  return "rank " + std::to_string(rank);
}

/// What a rank says of itself when its group is split.
struct Choice {
  bool takes_part = false;
  std::uint32_t color = 0;
  std::int64_t key = 0;
  std::size_t rank = 0;
  /// First rank and number of ranks on its host, as the launcher numbers them.  Only a hint where
  /// ranks are not numbered host by host; who shares memory is found out by sharing it.
  std::size_t host_first = 0;
  std::size_t host_size = 0;

  bool same_host(const Choice& other) const noexcept {
    return host_first == other.host_first && host_size == other.host_size;
  }
};

Result<std::vector<Choice>> gather_choices(Group& group,
                                           std::optional<std::uint32_t> color,
                                           std::int64_t key) {
  ByteWriter writer;
  writer.put(static_cast<std::uint8_t>(color ? 1 : 0));
  writer.put(color.value_or(0));
  writer.put(key);
  writer.put(static_cast<std::uint64_t>(index_of(group.rank()) - group.local_rank()));
  writer.put(static_cast<std::uint64_t>(group.local_size()));
  STRETTO_TRY_ASSIGN(const auto blobs,
                     group.control().all_gather(
                         "a split", writer.bytes(), Deadline::after(group.options().timeout)));
  std::vector<Choice> choices;
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    ByteReader reader(blobs[rank]);
    Choice choice;
    choice.takes_part = reader.get<std::uint8_t>() != 0;
    choice.color = reader.get<std::uint32_t>();
    choice.key = reader.get<std::int64_t>();
    choice.rank = rank;
    choice.host_first = reader.get<std::uint64_t>();
    choice.host_size = reader.get<std::uint64_t>();
    if (!reader.ok()) {
      return fail(StatusCode::kCorruptWire, name_of(rank) + " is of another version of Stretto");
    }
    choices.push_back(choice);
  }
  return choices;
}

/// The options of one member; `members` are in order.
GroupOptions options_for(const GroupOptions& parent,
                         const Choice& own,
                         const std::vector<Choice>& members,
                         std::size_t ranks_of_lower_colors) {
  GroupOptions options = parent;
  options.size = members.size();
  options.local_size = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i].rank == own.rank) {
      options.rank = i;
      options.local_rank = options.local_size;
    }
    options.local_size += members[i].same_host(own) ? 1 : 0;
  }
  // Sub-groups connect at the same time: each has ports of its own, out of the parent's.
  if (options.first_port != 0) {
    options.first_port = static_cast<std::uint16_t>(options.first_port + ranks_of_lower_colors);
  }
  return options;
}

}  // namespace

std::vector<std::size_t> members_of(const Group& group) {
  const auto* const part = dynamic_cast<const SubGroup*>(&group);
  return part == nullptr ? std::vector<std::size_t>{} : part->members();
}

Result<std::shared_ptr<SubGroup>> SubGroup::split(std::shared_ptr<Group> parent,
                                                  const EngineOptions& options,
                                                  std::optional<std::uint32_t> color,
                                                  std::int64_t key) {
  STRETTO_TRY_ASSIGN(const auto choices, gather_choices(*parent, color, key));
  EngineOptions of_mesh;
  of_mesh.transport = options.transport;
  STRETTO_TRY_ASSIGN(auto mesh, registry::make_transport(*parent, of_mesh));
  const Choice& own = choices[index_of(parent->rank())];
  if (!own.takes_part) {
    return nullptr;
  }
  std::vector<Choice> members;
  std::size_t of_lower_colors = 0;
  for (const Choice& choice : choices) {
    if (choice.takes_part && choice.color == own.color) {
      members.push_back(choice);
    }
    of_lower_colors += choice.takes_part && choice.color < own.color ? 1 : 0;
  }
  std::stable_sort(members.begin(), members.end(), [](const Choice& a, const Choice& b) {
    return a.key < b.key;
  });
  std::vector<std::size_t> in_parent;
  for (const Choice& member : members) {
    in_parent.push_back(member.rank);
  }
  GroupOptions own_options = options_for(parent->options(), own, members, of_lower_colors);
  return std::shared_ptr<SubGroup>(new SubGroup(
      std::move(parent), std::move(own_options), std::move(in_parent), std::move(mesh)));
}

SubGroup::SubGroup(std::shared_ptr<Group> parent,
                   GroupOptions options,
                   std::vector<std::size_t> in_parent,
                   std::unique_ptr<spi::Transport> mesh)
    : parent_(std::move(parent)),
      options_(std::move(options)),
      peers_(in_parent.size()),
      mesh_(std::move(mesh)),
      round_(in_parent.size()) {
  const auto whole = members_of(*parent_);
  nested_ = !whole.empty();
  for (std::size_t member = 0; member < in_parent.size(); ++member) {
    peers_[member].mesh_rank = in_parent[member];
    members_.push_back(nested_ ? whole[in_parent[member]] : in_parent[member]);
  }
}

Status SubGroup::health() const {
  const Status status = parent_->control().health();
  if (status.is_ok() || nested_) {
    return status;
  }
  return {status.code(), std::string(status.message()) + " (counted in the whole group)"};
}

Result<std::vector<spi::Bytes>> SubGroup::all_gather(std::string_view what,
                                                     std::span<const std::byte> mine,
                                                     Deadline deadline) {
  STRETTO_TRY(rendezvous::check_gather_call(what, mine.size()));
  MutexLock lock(mutex_);
  STRETTO_TRY(broken_);
  auto gathered = gather(what, mine, deadline);
  if (!gathered) {
    broken_ = gathered.error();
  }
  return gathered;
}

Result<std::vector<spi::Bytes>> SubGroup::gather(std::string_view what,
                                                 std::span<const std::byte> mine,
                                                 Deadline deadline) {
  const std::size_t own = options_.rank;
  ++sequence_;
  ByteWriter writer;
  writer.put_text(what);
  writer.put_bytes(mine);
  outgoing_ = std::move(writer).take();
  for (Member& peer : peers_) {
    peer.sent = false;
    peer.announced_to = false;
  }
  peers_[own].sent = true;
  peers_[own].announced_to = true;
  STRETTO_TRY(round_.add(own, sequence_, what, {mine.begin(), mine.end()}));
  while (true) {
    STRETTO_TRY(announce());
    STRETTO_TRY_ASSIGN(const bool moved, take_events());
    for (std::size_t member = 0; member < size(); ++member) {
      STRETTO_TRY(accept(member));
    }
    if (complete()) {
      return round_.take();
    }
    if (!moved) {
      STRETTO_TRY(check_waiting(what, deadline));
      sleep(deadline);
    }
  }
}

bool SubGroup::complete() {
  return round_.complete() &&
         std::all_of(peers_.begin(), peers_.end(), [](const Member& peer) { return peer.sent; });
}

/// Announces this rank's blob to the members that have not heard of it.
Status SubGroup::announce() {
  for (std::size_t steps = 1; steps < size(); ++steps) {
    const std::size_t member = (options_.rank + steps) % size();
    Member& peer = peers_[member];
    if (peer.announced_to || peer.lost) {
      continue;
    }
    spi::MessageHeader header;
    header.stage = spi::Stage::kUser;
    header.step = sequence_;
    header.payload_bytes = outgoing_.size();
    const Status status = mesh_->announce(
        Rank{static_cast<std::uint32_t>(peer.mesh_rank)}, header, outgoing_, member);
    if (status.code() != StatusCode::kWouldBlock) {
      // A loss is an event too, and is told in words there.
      STRETTO_TRY(status.code() == StatusCode::kPeerLost ? Status() : status);
      peer.announced_to = true;
    }
  }
  return {};
}

Result<bool> SubGroup::take_events() {
  std::array<spi::TransportEvent, 16> events;
  STRETTO_TRY_ASSIGN(const std::size_t count, mesh_->poll(events));
  for (std::size_t i = 0; i < count; ++i) {
    const spi::TransportEvent& event = events[i];
    const auto peer = std::find_if(peers_.begin(), peers_.end(), [&](const Member& member) {
      return member.mesh_rank == index_of(event.peer);
    });
    if (peer == peers_.end()) {
      continue;  // of another color; it has gone its way
    }
    switch (event.kind) {
      case spi::TransportEvent::Kind::kAnnounced:
        peer->announced.push_back(event);
        break;
      case spi::TransportEvent::Kind::kReceived:
        STRETTO_TRY(take_blob(static_cast<std::size_t>(peer - peers_.begin())));
        break;
      case spi::TransportEvent::Kind::kSent:
        peer->sent = true;
        break;
      case spi::TransportEvent::Kind::kPeerLost:
        peer->lost = true;
        break;
    }
  }
  return count > 0;
}

/// Lets a member's blob of this round come.
Status SubGroup::accept(std::size_t member) {
  Member& peer = peers_[member];
  if (peer.announced.empty() || peer.announced.front().header.step > sequence_) {
    return {};  // a member may be one round ahead
  }
  const spi::TransportEvent event = peer.announced.front();
  peer.announced.pop_front();
  if (event.header.payload_bytes > kMostMessageBytes) {
    return {StatusCode::kCorruptWire,
            name_of(member) + " sent " + std::to_string(event.header.payload_bytes) +
                " bytes to an all_gather, more than are allowed"};
  }
  peer.incoming.resize(event.header.payload_bytes);
  const Status accepted = mesh_->accept(event.peer, event.message, peer.incoming);
  return accepted.code() == StatusCode::kPeerLost ? Status() : accepted;
}

Status SubGroup::take_blob(std::size_t member) {
  const std::span<const std::byte> bytes = peers_[member].incoming;
  ByteReader reader(bytes);
  const std::string what = reader.get_text();
  if (!reader.ok()) {
    return {StatusCode::kCorruptWire, name_of(member) + " sent what is no blob"};
  }
  const auto blob = bytes.subspan(sizeof(std::uint32_t) + what.size());
  return round_.add(member, sequence_, what, {blob.begin(), blob.end()});
}

/// Why the wait in a gather is over, if it is.
Status SubGroup::check_waiting(std::string_view what, Deadline deadline) {
  STRETTO_TRY(health());
  if (left_.load(std::memory_order_relaxed)) {
    return {StatusCode::kAborted, name_of(options_.rank) + " has left the sub-group"};
  }
  std::vector<std::size_t> missing;
  for (std::size_t member = 0; member < size(); ++member) {
    if (round_.has(member) && peers_[member].sent) {
      continue;
    }
    missing.push_back(member);
    if (peers_[member].lost) {
      return {StatusCode::kPeerLost,
              name_of(member) +
                  " has left the sub-group and takes no part in the all_gather for '" +
                  std::string(what) + "'"};
    }
  }
  if (deadline.passed()) {
    return {StatusCode::kDeadlineExceeded,
            name_of(options_.rank) + " waited in the all_gather for '" + std::string(what) +
                "' until its deadline, but " + rendezvous::name_ranks(missing) + " did not call"};
  }
  return {};
}

void SubGroup::sleep(Deadline deadline) {
  auto wait = std::min<std::chrono::nanoseconds>(deadline.left(), kNap);
  if (const TimePoint due = mesh_->next_due(); due != TimePoint::max()) {
    const TimePoint now = Clock::now();
    wait = due <= now ? std::chrono::nanoseconds(0)
                      : std::min<std::chrono::nanoseconds>(due - now, wait);
  }
  std::array<pollfd, 2> descriptors{{{mesh_->descriptor(), POLLIN, 0}, {descriptor(), POLLIN, 0}}};
  timespec timeout{};
  timeout.tv_nsec = static_cast<long>(wait.count());
  static_cast<void>(::ppoll(descriptors.data(), descriptors.size(), &timeout, nullptr));
}

}  // namespace stretto::collective

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/status.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace stretto {

/// When gradients travel.
enum class Schedule : std::uint8_t {
  kSequential,  ///< all of them once backward has ended: nothing overlaps; for comparison
  kBackward,    ///< each as soon as it is there, while backward goes on
};

/// What turns the ranks' chunks into their mean.
enum class ExchangeKind : std::uint8_t {
  kAuto,    ///< shared memory if all ranks are on one host, else owner
  kOwner,   ///< each shard goes to one rank, which adds and answers
  kOneHop,  ///< everyone sends everything to everyone; least latency, most bytes
  kShared,  ///< ranks of one host read each other's gradients in place
  kRing,    ///< each rank sends to the next alone; adds in an order of its own
  kMpi,     ///< MPI's own all-reduce; adds in an order of its own
};

/// Which orders of adding an exchange may have.
enum class OrderChoice : std::uint8_t {
  kRank,  ///< rank 0 + rank 1 + ...: the same bits with every exchange that may be chosen
  kAny,   ///< an exchange's own order too: bits may differ with exchange, ranks and chunks
};

/// A link that is emulated inside the transport, without root.  Zero means not limited.
struct LinkOptions {
  double bytes_per_second = 0;        ///< of each direction of each rank
  std::chrono::nanoseconds delay{0};  ///< one way

  bool emulated() const noexcept { return bytes_per_second > 0 || delay.count() > 0; }
};

/// How ranks find each other.
struct GroupOptions {
  std::size_t rank = 0;
  std::size_t size = 1;
  std::size_t local_rank = 0;
  std::size_t local_size = 1;
  std::string master_address = "127.0.0.1";
  std::uint16_t master_port = 29500;
  std::string token;  ///< shared by all ranks of a job; set one where strangers reach the ports
  std::string
      interface;  ///< name or address of the interface for data; empty: the way to the master
  std::uint16_t first_port = 0;  ///< data ports from here on, rank 0's first; 0: any free one
  std::chrono::milliseconds timeout{60'000};    ///< for ranks to appear
  std::chrono::milliseconds dead_after{3'000};  ///< silence after which a rank is taken for lost

  /// Fills the above from RANK, WORLD_SIZE, ... (stretto run, torchrun), from mpirun's and srun's
  /// variables, and from STRETTO_TIMEOUT, _INTERFACE, _PORTS, _TOKEN.
  static Result<GroupOptions> from_environment();
  Status validate() const;
};

/// How the engine moves gradients.  The defaults are right unless a comment below says otherwise.
struct EngineOptions {
  /// A size that is derived from the gradients.
  static constexpr std::size_t kAutomatic = SIZE_MAX;

  Schedule schedule = Schedule::kBackward;
  ExchangeKind exchange = ExchangeKind::kAuto;
  /// The exchanges ring and mpi need kAny; kAuto never takes one of them.
  OrderChoice order = OrderChoice::kRank;
  std::string transport = "auto";  ///< auto | inproc | tcp | ucx (trusted networks)
  LinkOptions link;                ///< emulate a slower network
  /// Unit of transfer.  Smaller: sooner on the wire; larger: fewer messages.  0: a parameter each;
  /// kAutomatic: a 64th of all gradients, from 64 KiB to 1 MiB, so that the first and the last
  /// chunk, in which the links cannot all be busy, cost little.
  std::size_t chunk_bytes = kAutomatic;
  /// Chunks up to this size go in one hop from everyone to everyone; with a codec over one owner.
  std::size_t one_hop_bytes = std::size_t{16} << 10;
  /// After this long without news, the ready shards of a chunk that is not yet full leave.
  std::chrono::microseconds flush_after{500};
  /// Threads that copy and add beside the progress thread; 0: the progress thread does it.
  std::size_t reduction_threads = 0;
  /// How gradients are encoded on the wire: "none", or a codec by name, such as "fp16", "int8",
  /// "topk:1%" (`stretto bench codec --help` lists them).  Of gradients with at least two
  /// dimensions and `codec_minimum` elements: biases and norms travel as they are.
  std::string codec = "none";
  /// PATTERN=CODEC, several with commas between them; the first whose shell pattern fits a
  /// parameter's name decides, whatever its size: "*.bias=none,embedding.*=int8".
  std::string codec_rules;
  std::size_t codec_minimum = 1024;
  /// Threads that encode, add and decode what has a codec; never the training thread.
  std::size_t codec_threads = 1;
  /// Scratch for contributions of other ranks that came early.
  std::size_t scratch_bytes = std::size_t{64} << 20;
  /// Every so many steps ranks compare a hash of their parameters; 0: never.
  std::size_t check_replicas_every = 100;
  std::chrono::milliseconds timeout{60'000};  ///< for one step's waits
  std::string trace_file;                     ///< Chrome trace, written at shutdown; empty: none
  std::string metrics_file;                   ///< one JSON line per step; empty: none

  /// Fills the above from STRETTO_SCHEDULE, _EXCHANGE, _ORDER, _TRANSPORT, _LINK, _CHUNK, _TIMEOUT,
  /// _TRACE, _METRICS, _REDUCTION_THREADS, _CODEC, _CODEC_RULES, _CODEC_MINIMUM, _CODEC_THREADS
  /// over what `base` says.
  static Result<EngineOptions> from_environment(const EngineOptions& base);
  static Result<EngineOptions> from_environment() { return from_environment(EngineOptions{}); }
  Status validate() const;
  /// `chunk_bytes`, or what kAutomatic means for so many bytes of gradients.
  std::size_t chunk_bytes_for(std::size_t gradient_bytes) const noexcept;
};

/// Reads "1gbit", "500mbit,2ms", "none".
Result<LinkOptions> parse_link(std::string_view text);
/// Reads "sequential" or "backward".
Result<Schedule> parse_schedule(std::string_view text);
/// Reads "auto", "owner", "one-hop", "shared", "ring" or "mpi".
Result<ExchangeKind> parse_exchange(std::string_view text);
/// Reads "rank" or "any".
Result<OrderChoice> parse_order(std::string_view text);
/// Reads "64k", "1m", "4096" (powers of 1024).
Result<std::size_t> parse_bytes(std::string_view text);
/// Reads "2ms", "500us", "60s", "1m".
Result<std::chrono::nanoseconds> parse_duration(std::string_view text);

std::string_view to_string(Schedule schedule) noexcept;
std::string_view to_string(ExchangeKind exchange) noexcept;
std::string_view to_string(OrderChoice order) noexcept;

}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
#include "stretto/options.hpp"

#include "base/log.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <optional>

namespace stretto {
namespace {

/// A number with a unit directly behind it.
struct Quantity {
  double value = 0;
  std::string_view unit;
};

std::optional<Quantity> parse_quantity(std::string_view text) {
  Quantity quantity;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, quantity.value);
  if (error != std::errc() || quantity.value < 0) {
    return std::nullopt;
  }
  quantity.unit = std::string_view(rest, static_cast<std::size_t>(end - rest));
  return quantity;
}

tl::unexpected<Status> cannot_read(std::string_view what,
                                   std::string_view text,
                                   std::string_view example) {
  return fail(StatusCode::kInvalidArgument,
              "cannot read '" + std::string(text) + "' as " + std::string(what) +
                  "; write for example " + std::string(example));
}

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  return std::string(value);
}

/// The first variable of several launchers that is set, and its name.
std::optional<std::pair<std::string, std::string>> first_of(
    std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (auto value = variable(name)) {
      return std::pair<std::string, std::string>(name, *value);
    }
  }
  return std::nullopt;
}

Status read_number(std::initializer_list<const char*> names, std::size_t& into) {
  const auto found = first_of(names);
  if (!found) {
    return {};
  }
  const auto& [name, text] = *found;
  std::size_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size()) {
    return {StatusCode::kInvalidArgument, name + "='" + text + "' is not a whole number"};
  }
  into = value;
  return {};
}

/// Slurm writes "node[1-4],other": the first host is where rank 0 runs.
std::string first_slurm_host(const std::string& list) {
  const auto bracket = list.find('[');
  const auto comma = list.find(',');
  if (bracket == std::string::npos || (comma != std::string::npos && comma < bracket)) {
    return list.substr(0, comma);
  }
  const auto end = list.find_first_of(",-]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

/// Slurm writes the tasks of each host as "4(x2),3": how many are on host number `host`.
std::size_t slurm_local_size(std::string_view list, std::size_t host) {
  const auto number_at = [&](std::size_t at) {
    std::size_t value = 1;
    at = std::min(at, list.size());
    std::from_chars(list.data() + at, list.data() + list.size(), value);
    return value;
  };
  std::size_t hosts = 0;  // up to and with this entry
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::size_t times = list.find("(x");
    hosts += times < comma ? number_at(times + 2) : 1;
    if (host < hosts) {
      return std::max<std::size_t>(number_at(0), 1);
    }
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return 1;
}

/// A port that all ranks of one Slurm job compute alike and other jobs of the host do not.
std::uint16_t slurm_port(const std::string& job) {
  std::uint64_t number = 0;
  std::from_chars(job.data(), job.data() + job.size(), number);
  return static_cast<std::uint16_t>(20000 + number % 10000);
}

Status read_master(GroupOptions& options) {
  if (auto address = variable("MASTER_ADDR")) {
    options.master_address = *address;
  } else if (auto list = variable("SLURM_STEP_NODELIST")) {
    options.master_address = first_slurm_host(*list);
  }
  std::size_t port = options.master_port;
  STRETTO_TRY(read_number({"MASTER_PORT"}, port));
  if (port > 65535) {
    return {StatusCode::kInvalidArgument, "MASTER_PORT=" + std::to_string(port) + " is not a port"};
  }
  if (variable("TORCHELASTIC_USE_AGENT_STORE") == "True" && port < 65535) {
    ++port;  // torchrun's own store listens on MASTER_PORT itself
  }
  options.master_port = static_cast<std::uint16_t>(port);
  if (!variable("MASTER_PORT")) {
    if (auto job = variable("SLURM_JOB_ID")) {
      options.master_port = slurm_port(*job);
    }
  }
  return {};
}

}  // namespace

Result<LinkOptions> parse_link(std::string_view text) {
  LinkOptions link;
  if (text.empty() || text == "none") {
    return link;
  }
  const auto comma = text.find(',');
  const auto rate = parse_quantity(text.substr(0, comma));
  constexpr std::array<std::pair<std::string_view, double>, 4> kUnits{
      {{"bit", 1.0 / 8}, {"kbit", 1e3 / 8}, {"mbit", 1e6 / 8}, {"gbit", 1e9 / 8}}};
  const auto* unit =
      rate ? std::find_if(kUnits.begin(),
                          kUnits.end(),
                          [&](const auto& known) { return known.first == rate->unit; })
           : kUnits.end();
  if (unit == kUnits.end() || rate->value <= 0) {
    return cannot_read("a link", text, "1gbit or 500mbit,2ms");
  }
  link.bytes_per_second = rate->value * unit->second;
  if (comma != std::string_view::npos) {
    STRETTO_TRY_ASSIGN(link.delay, parse_duration(text.substr(comma + 1)));
  }
  return link;
}

Result<Schedule> parse_schedule(std::string_view text) {
  if (text == "sequential") {
    return Schedule::kSequential;
  }
  if (text == "backward") {
    return Schedule::kBackward;
  }
  return cannot_read("a schedule", text, "sequential or backward");
}

Result<ExchangeKind> parse_exchange(std::string_view text) {
  for (const ExchangeKind kind : {ExchangeKind::kAuto,
                                  ExchangeKind::kOwner,
                                  ExchangeKind::kOneHop,
                                  ExchangeKind::kShared,
                                  ExchangeKind::kRing,
                                  ExchangeKind::kMpi}) {
    if (text == to_string(kind)) {
      return kind;
    }
  }
  return cannot_read("an exchange", text, "auto, owner, one-hop, shared, ring or mpi");
}

Result<OrderChoice> parse_order(std::string_view text) {
  for (const OrderChoice order : {OrderChoice::kRank, OrderChoice::kAny}) {
    if (text == to_string(order)) {
      return order;
    }
  }
  return cannot_read("an order of sums", text, "rank or any");
}

Result<std::size_t> parse_bytes(std::string_view text) {
  const auto quantity = parse_quantity(text);
  if (quantity) {
    constexpr std::array<std::pair<std::string_view, double>, 6> kUnits{
        {{"", 1}, {"b", 1}, {"k", 1024}, {"m", 1048576}, {"g", 1073741824}, {"kb", 1024}}};
    for (const auto& [unit, factor] : kUnits) {
      if (quantity->unit == unit) {
        return static_cast<std::size_t>(quantity->value * factor);
      }
    }
  }
  return cannot_read("a size", text, "64k, 1m or 4096");
}

Result<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  const auto quantity = parse_quantity(text);
  if (quantity) {
    constexpr std::array<std::pair<std::string_view, double>, 5> kUnits{
        {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}}};
    for (const auto& [unit, factor] : kUnits) {
      if (quantity->unit == unit) {
        return std::chrono::nanoseconds(static_cast<std::int64_t>(quantity->value * factor));
      }
    }
  }
  return cannot_read("a time", text, "2ms, 500us or 60s");
}

std::string_view to_string(Schedule schedule) noexcept {
  return schedule == Schedule::kSequential ? "sequential" : "backward";
}

std::string_view to_string(ExchangeKind exchange) noexcept {
  switch (exchange) {
    case ExchangeKind::kAuto:
      return "auto";
    case ExchangeKind::kOwner:
      return "owner";
    case ExchangeKind::kOneHop:
      return "one-hop";
    case ExchangeKind::kShared:
      return "shared";
    case ExchangeKind::kRing:
      return "ring";
    case ExchangeKind::kMpi:
      return "mpi";
  }
  return "unknown";
}

std::string_view to_string(OrderChoice order) noexcept {
  return order == OrderChoice::kRank ? "rank" : "any";
}

Result<GroupOptions> GroupOptions::from_environment() {
  GroupOptions options;
  STRETTO_TRY(
      read_number({"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}, options.rank));
  STRETTO_TRY(read_number({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"},
                          options.size));
  STRETTO_TRY(
      read_number({"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"},
                  options.local_rank));
  STRETTO_TRY(read_number({"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"},
                          options.local_size));
  const auto tasks = variable("SLURM_STEP_TASKS_PER_NODE");
  if (tasks && !first_of({"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"})) {
    std::size_t host = 0;
    STRETTO_TRY(read_number({"SLURM_NODEID"}, host));
    options.local_size = slurm_local_size(*tasks, host);
  }
  STRETTO_TRY(read_master(options));
  if (auto token = variable("STRETTO_TOKEN")) {
    options.token = *token;
  }
  if (auto interface = variable("STRETTO_INTERFACE")) {
    options.interface = *interface;
  }
  std::size_t port = 0;
  STRETTO_TRY(read_number({"STRETTO_PORTS"}, port));
  options.first_port = static_cast<std::uint16_t>(std::min<std::size_t>(port, 65535));
  if (auto timeout = variable("STRETTO_TIMEOUT")) {
    STRETTO_TRY_ASSIGN(const auto wait, parse_duration(*timeout));
    options.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(wait);
  }
  STRETTO_TRY(options.validate());
  return options;
}

Status GroupOptions::validate() const {
  if (size == 0 || size > 4096) {
    return {StatusCode::kInvalidArgument,
            "WORLD_SIZE is " + std::to_string(size) + "; it must be from 1 to 4096"};
  }
  if (rank >= size) {
    return {StatusCode::kInvalidArgument,
            "RANK is " + std::to_string(rank) + ", but WORLD_SIZE is " + std::to_string(size) +
                "; ranks are counted from 0"};
  }
  if (timeout.count() <= 0) {
    return {StatusCode::kInvalidArgument, "the time-out must be longer than zero"};
  }
  if (dead_after < std::chrono::milliseconds(10)) {
    return {StatusCode::kInvalidArgument,
            "a rank cannot be taken for lost after less than 10 ms of silence"};
  }
  return {};
}

Result<EngineOptions> EngineOptions::from_environment(const EngineOptions& base) {
  EngineOptions options = base;
  if (auto text = variable("STRETTO_SCHEDULE")) {
    STRETTO_TRY_ASSIGN(options.schedule, parse_schedule(*text));
  }
  if (auto text = variable("STRETTO_EXCHANGE")) {
    STRETTO_TRY_ASSIGN(options.exchange, parse_exchange(*text));
  }
  if (auto text = variable("STRETTO_ORDER")) {
    STRETTO_TRY_ASSIGN(options.order, parse_order(*text));
  }
  if (auto text = variable("STRETTO_TRANSPORT")) {
    options.transport = *text;
  }
  if (auto text = variable("STRETTO_LINK")) {
    STRETTO_TRY_ASSIGN(options.link, parse_link(*text));
  }
  if (auto text = variable("STRETTO_CHUNK")) {
    if (*text == "auto") {
      options.chunk_bytes = kAutomatic;
    } else {
      STRETTO_TRY_ASSIGN(options.chunk_bytes, parse_bytes(*text));
    }
  }
  if (auto text = variable("STRETTO_TIMEOUT")) {
    STRETTO_TRY_ASSIGN(const auto wait, parse_duration(*text));
    options.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(wait);
  }
  STRETTO_TRY(read_number({"STRETTO_REDUCTION_THREADS"}, options.reduction_threads));
  if (auto text = variable("STRETTO_CODEC")) {
    options.codec = *text;
  }
  if (auto text = variable("STRETTO_CODEC_RULES")) {
    options.codec_rules = *text;
  }
  STRETTO_TRY(read_number({"STRETTO_CODEC_MINIMUM"}, options.codec_minimum));
  STRETTO_TRY(read_number({"STRETTO_CODEC_THREADS"}, options.codec_threads));
  if (auto text = variable("STRETTO_TRACE")) {
    options.trace_file = *text;
  }
  if (auto text = variable("STRETTO_METRICS")) {
    options.metrics_file = *text;
  }
  if (auto text = variable("STRETTO_LOG")) {  // not an option, but misread as silently as one
    if (const auto level = parse_log_level(*text); !level) {
      return fail(StatusCode::kInvalidArgument,
                  "STRETTO_LOG: " + std::string(level.error().message()));
    }
  }
  STRETTO_TRY(options.validate());
  return options;
}

std::size_t EngineOptions::chunk_bytes_for(std::size_t gradient_bytes) const noexcept {
  constexpr std::size_t kChunks = 64;
  constexpr std::size_t kSmallest = std::size_t{64} << 10;
  constexpr std::size_t kLargest = std::size_t{1} << 20;
  return chunk_bytes == kAutomatic ? std::clamp(gradient_bytes / kChunks, kSmallest, kLargest)
                                   : chunk_bytes;
}

Status EngineOptions::validate() const {
  if (chunk_bytes != 0 && chunk_bytes != kAutomatic &&
      (chunk_bytes < 1024 || chunk_bytes > (std::size_t{1} << 30))) {
    return {StatusCode::kInvalidArgument,
            "the chunk size is " + std::to_string(chunk_bytes) +
                " bytes; it must be from 1 KiB to 1 GiB, or 0 for a chunk per parameter"};
  }
  const bool native = exchange == ExchangeKind::kRing || exchange == ExchangeKind::kMpi;
  if (native && order != OrderChoice::kAny) {
    return {StatusCode::kInvalidArgument,
            "the exchange " + std::string(to_string(exchange)) +
                " adds in an order of its own, so its bits differ from those of the others; set "
                "STRETTO_ORDER=any (--order any) to allow that, or choose owner"};
  }
  if (transport != "auto" && transport != "inproc" && transport != "tcp" && transport != "ucx") {
    return {StatusCode::kInvalidArgument,
            "there is no transport '" + transport + "'; choose auto, inproc, tcp or ucx"};
  }
  if (reduction_threads > 64) {
    return {StatusCode::kInvalidArgument, "more than 64 reduction threads help nobody"};
  }
  if (codec_threads == 0 || codec_threads > 64) {
    return {
        StatusCode::kInvalidArgument,
        "there are " + std::to_string(codec_threads) + " codec threads; it must be from 1 to 64"};
  }
  if (timeout.count() <= 0) {
    return {StatusCode::kInvalidArgument, "the time-out must be longer than zero"};
  }
  return {};
}

}  // namespace stretto

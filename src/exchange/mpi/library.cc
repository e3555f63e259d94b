// SPDX-License-Identifier: Apache-2.0
#include "exchange/mpi/library.hpp"

#include "base/byte_order.hpp"
#include "base/fault_point.hpp"
#include "base/log.hpp"
#include "exchange/mpi/factory.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

namespace stretto::exchange {
namespace {

constexpr int kTag = 0x57E7;
constexpr auto kPatienceAtTheEnd = std::chrono::seconds(5);
constexpr auto kLook = std::chrono::milliseconds(10);
constexpr auto kPatienceAfterLoss = std::chrono::milliseconds(500);
constexpr int kExitPeerLost = 4;  // as the commands of `stretto` end

std::atomic<bool> given_up{false};          // NOLINT: of the process, as MPI is
std::atomic<MPI_Comm> last_communicator{};  // NOLINT

/// Whether all ranks of the last group get to the end of their program.
bool all_end() {
  const MPI_Comm communicator = last_communicator.load();
  MPI_Request request = MPI_REQUEST_NULL;
  if (given_up.load() || communicator == MPI_Comm{} ||
      MPI_Ibarrier(communicator, &request) != MPI_SUCCESS) {
    return false;
  }
  int ended = 0;
  for (const Deadline deadline = Deadline::after(kPatienceAtTheEnd); !deadline.passed();) {
    if (MPI_Test(&request, &ended, MPI_STATUS_IGNORE) != MPI_SUCCESS || ended != 0) {
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return ended != 0;
}

void end_mpi() {
  int ended = 0;
  if (MPI_Finalized(&ended) == MPI_SUCCESS && ended == 0 && all_end()) {
    MPI_Finalize();
  }
}

/// Without a launcher each process would become a world of its own, slowly.
bool has_launcher() {
  constexpr std::array kVariables{
      "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "PMI_FD", "MPI_LOCALNRANKS"};
  return std::any_of(kVariables.begin(), kVariables.end(), [](const char* name) {
    return std::getenv(name) != nullptr;
  });
}

/// Ends the process when a rank is lost, or the time is over, while MPI waits for it: nothing can
/// break off MPI_Init or the making of a communicator, and every wait has an end.
///
/// Threading: confined(whoever calls MPI); the thread is its own.
class Watch {
 public:
  Watch(const spi::ControlPlane& control, Deadline deadline)
      : control_(control), deadline_(deadline), thread_([this] { run(); }) {}
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() {
    over_.store(true, std::memory_order_relaxed);
    thread_.join();
  }

 private:
  void run() {
    while (control_.health().is_ok() && !deadline_.passed()) {
      if (is_over()) {
        return;
      }
    }
    // mpirun may be about to say more.
    for (const Deadline end = Deadline::after(kPatienceAfterLoss); !end.passed();) {
      if (is_over()) {
        return;
      }
    }
    const Status health = control_.health();
    const std::string why =
        health.is_ok() ? "MPI did not start in time" : std::string(health.message());
    log(LogLevel::kError,
        why + "; MPI is being started and cannot be told to stop, so this process ends");
    std::_Exit(kExitPeerLost);
  }
  bool is_over() {
    std::this_thread::sleep_for(kLook);
    return over_.load(std::memory_order_relaxed);
  }

  const spi::ControlPlane& control_;
  const Deadline deadline_;
  std::atomic<bool> over_{false};  // orders nothing else
  std::thread thread_;
};

/// Whether this process may use MPI; asks MPI for nothing that waits.
Status can_use_mpi(std::size_t ranks) {
  int over = 0;
  int begun = 0;
  STRETTO_TRY(mpi_status(MPI_Finalized(&over), "MPI_Finalized"));
  STRETTO_TRY(mpi_status(MPI_Initialized(&begun), "MPI_Initialized"));
  if (over != 0) {
    return {StatusCode::kUnsupported,
            "the program has ended MPI (MPI_Finalize), so that the exchange mpi cannot use it; end "
            "it later, or choose another exchange"};
  }
  if (begun != 0) {
    int provided = MPI_THREAD_SINGLE;
    STRETTO_TRY(mpi_status(MPI_Query_thread(&provided), "MPI_Query_thread"));
    // The program may call MPI at any time, and so may the progress thread.
    if (provided < MPI_THREAD_MULTIPLE) {
      return {
          StatusCode::kUnsupported,
          "the program has started MPI without MPI_THREAD_MULTIPLE; start it by MPI_Init_thread "
          "with that, or leave it to Stretto, or choose another exchange"};
    }
    return {};
  }
  if (ranks > 1 && !has_launcher()) {
    return {StatusCode::kUnsupported,
            "MPI did not start this process; start the job with mpirun, or choose another "
            "exchange"};
  }
  return {};
}

Status start_mpi() {
  int begun = 0;
  STRETTO_TRY(mpi_status(MPI_Initialized(&begun), "MPI_Initialized"));
  if (begun != 0) {
    return {};
  }
  int provided = MPI_THREAD_SINGLE;
  STRETTO_TRY(mpi_status(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided),
                         "MPI_Init_thread"));
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  std::atexit(&end_mpi);
  if (provided < MPI_THREAD_SERIALIZED) {
    return {StatusCode::kUnsupported,
            "this MPI lets only the thread that started it use it; choose another exchange"};
  }
  return {};
}

/// What one rank is to MPI.
struct Place {
  std::string trouble;  ///< empty: none
  int rank = 0;
  int size = 0;
};

Place own_place() {
  Place place;
  Status status = start_mpi();
  if (status.is_ok()) {
    status = mpi_status(MPI_Comm_rank(MPI_COMM_WORLD, &place.rank), "MPI_Comm_rank");
  }
  if (status.is_ok()) {
    status = mpi_status(MPI_Comm_size(MPI_COMM_WORLD, &place.size), "MPI_Comm_size");
  }
  place.trouble = status.message();
  return place;
}

/// Before MPI is asked for what waits for all: can all, and are they here?
Status agree_to_start(spi::ControlPlane& control, Deadline deadline) {
  const Status mine = can_use_mpi(control.size());
  STRETTO_TRY_ASSIGN(
      const auto troubles,
      control.all_gather("the start of MPI",
                         std::as_bytes(std::span(mine.message().data(), mine.message().size())),
                         deadline));
  for (std::size_t rank = 0; rank < troubles.size(); ++rank) {
    if (!troubles[rank].empty()) {
      return {StatusCode::kUnsupported,
              "rank " + std::to_string(rank) + ": " +
                  std::string(reinterpret_cast<const char*>(troubles[rank].data()),
                              troubles[rank].size())};
    }
  }
  return {};
}

/// The rank in MPI's world of each rank of the group.
Result<std::vector<int>> agree_on_places(spi::ControlPlane& control, Deadline deadline) {
  const Place mine = own_place();
  ByteWriter writer;
  writer.put_text(mine.trouble);
  writer.put(static_cast<std::int32_t>(mine.rank));
  writer.put(static_cast<std::int32_t>(mine.size));
  STRETTO_TRY_ASSIGN(const auto blobs,
                     control.all_gather("the ranks of MPI", writer.bytes(), deadline));
  std::vector<int> places;
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    ByteReader reader(blobs[rank]);
    const std::string trouble(reader.get_text());
    if (!trouble.empty()) {
      return fail(StatusCode::kUnsupported, "rank " + std::to_string(rank) + ": " + trouble);
    }
    places.push_back(reader.get<std::int32_t>());
    if (reader.get<std::int32_t>() != mine.size) {
      return fail(StatusCode::kUnsupported,
                  "rank " + std::to_string(rank) +
                      " is in another world of MPI; start all ranks with one mpirun");
    }
  }
  if (std::set<int>(places.begin(), places.end()).size() != places.size()) {
    return fail(StatusCode::kUnsupported,
                "two ranks have the same number in MPI; start all ranks with one mpirun");
  }
  return places;
}

Result<MPI_Comm> make_communicator(const std::vector<int>& places, Rank own) {
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm communicator = MPI_COMM_NULL;
  STRETTO_TRY(mpi_status(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group"));
  int code = MPI_Group_incl(world, static_cast<int>(places.size()), places.data(), &group);
  if (code == MPI_SUCCESS) {
    code = MPI_Comm_create_group(MPI_COMM_WORLD, group, kTag, &communicator);
    MPI_Group_free(&group);
  }
  MPI_Group_free(&world);
  STRETTO_TRY(mpi_status(code, "MPI_Comm_create_group"));
  int rank = -1;
  int size = 0;
  MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
  STRETTO_TRY(mpi_status(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank"));
  STRETTO_TRY(mpi_status(MPI_Comm_size(communicator, &size), "MPI_Comm_size"));
  if (static_cast<std::size_t>(rank) != index_of(own) ||
      static_cast<std::size_t>(size) != places.size()) {
    return fail(StatusCode::kInternal,
                "MPI made this rank number " + std::to_string(rank) + " of " +
                    std::to_string(size) + ", but it is rank " + std::to_string(index_of(own)) +
                    " of " + std::to_string(places.size()));
  }
  return communicator;
}

}  // namespace

Status mpi_status(int code, const std::string& what) {
  if (code == MPI_SUCCESS) {
    return {};
  }
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) {
    length = 0;
  }
  return {StatusCode::kUnavailable,
          what + " failed: " + std::string(text.data(), static_cast<std::size_t>(length)) +
              "; see what mpirun says, or choose another exchange"};
}

Result<MPI_Comm> join_mpi(spi::ControlPlane& control, Deadline deadline) {
  STRETTO_TRY(agree_to_start(control, deadline));
  const Watch watch(control, deadline);
  fault_point("mpi.start", index_of(control.rank()));
  STRETTO_TRY_ASSIGN(const std::vector<int> places, agree_on_places(control, deadline));
  STRETTO_TRY_ASSIGN(const MPI_Comm communicator, make_communicator(places, control.rank()));
  last_communicator.store(communicator);
  return communicator;
}

void give_up_mpi() noexcept {
  given_up.store(true);
}

std::optional<std::string> mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) {
    return "unknown";
  }
  const std::string version(text.data(), static_cast<std::size_t>(length));
  return version.substr(0, version.find_first_of(",\n"));
}

}  // namespace stretto::exchange

// SPDX-License-Identifier: Apache-2.0
//
// stretto bench allreduce: how long one all-reduce takes, as nccl-tests count.
//
// In place, float32, a barrier before each; a repetition takes what its slowest rank takes, and the
// figure is the median of the repetitions.  For S bytes, P ranks and t seconds:
//   algbw = S / t            busbw = algbw * 2 (P - 1) / P       (GB/s, 1 GB = 1e9 bytes)
// After the repetitions one more is checked, element by element.
#include "base/byte_order.hpp"
#include "command.hpp"

#include "stretto/collective.hpp"
#include "stretto/group.hpp"
#include "stretto/options.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

namespace stretto::cli {
namespace {

struct BenchOptions {
  std::size_t ranks = 2;
  std::vector<std::string> sizes{"1k", "16k", "64k", "256k", "1m", "4m", "16m", "64m"};
  std::vector<std::string> memory{"arena", "user"};
  std::string link;
  std::string exchange;
  std::string order;
  std::size_t repetitions = 0;  ///< 0: as many as move 200 MB, from 9 to 300
  double late_ms = 0;
};

struct Figure {
  std::size_t bytes = 0;
  std::string memory;
  std::size_t repetitions = 0;
  double median_us = 0;
  std::uint64_t mismatches = 0;
};

/// Starts this program once more, as the ranks of a job on this host.
Status start_ranks(const BenchOptions& options, const Context& context) {
  std::array<char, 4096> self{};
  if (::readlink("/proc/self/exe", self.data(), self.size() - 1) <= 0) {
    return {StatusCode::kUnavailable, "cannot find this program; is /proc mounted?"};
  }
  std::vector<std::string> words{
      self.data(), "run", "-n", std::to_string(options.ranks), "--no-prefix"};
  if (context.quiet) {
    words.emplace_back("--quiet");
  }
  words.insert(words.end(), {"--", self.data(), "bench", "allreduce"});
  if (context.json) {
    words.emplace_back("--json");
  }
  for (const auto& [option, values] :
       {std::pair("--sizes", &options.sizes), std::pair("--memory", &options.memory)}) {
    words.emplace_back(option);
    words.insert(words.end(), values->begin(), values->end());
  }
  words.insert(words.end(), {"--repetitions", std::to_string(options.repetitions)});
  words.insert(words.end(), {"--late-ms", std::to_string(options.late_ms)});
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  ::execv(self.data(), arguments.data());
  return {StatusCode::kUnavailable,
          std::string("cannot start ") + self.data() + ": " + std::strerror(errno)};
}

/// One series of all-reduces.
///
/// Threading: confined(main thread).
class Series {
 public:
  Series(Group& group, Communicator& communicator, const BenchOptions& options, Deadline deadline)
      : group_(group), communicator_(communicator), options_(options), deadline_(deadline) {}

  Result<Figure> measure(const std::string& memory, std::size_t bytes) {
    Figure figure;
    figure.bytes = bytes;
    figure.memory = memory;
    figure.repetitions =
        options_.repetitions > 0
            ? options_.repetitions
            : std::clamp<std::size_t>(200'000'000 / std::max<std::size_t>(bytes, 1), 9, 300);
    count_ = bytes / sizeof(float);
    std::unique_ptr<spi::Buffer> arena;
    std::vector<float> user;
    if (memory == "arena") {
      STRETTO_TRY_ASSIGN(arena, communicator_.allocate(bytes));
      data_ = reinterpret_cast<float*>(arena->data());
    } else {
      user.resize(count_);
      data_ = user.data();
    }
    std::fill_n(data_, count_, 0.0F);  // zeros stay zeros: sums never grow out of range
    constexpr int kWarmup = 5;
    for (int i = 0; i < kWarmup; ++i) {
      STRETTO_TRY(all_reduce());
    }
    std::vector<double> times;
    for (std::size_t i = 0; i < figure.repetitions; ++i) {
      STRETTO_TRY_ASSIGN(const double seconds, time_one());
      times.push_back(seconds);
    }
    STRETTO_TRY_ASSIGN(figure.median_us, median_of_slowest(times));
    STRETTO_TRY_ASSIGN(figure.mismatches, check());
    return figure;
  }

 private:
  Status all_reduce() {
    auto* bytes = reinterpret_cast<std::byte*>(data_);
    STRETTO_TRY_ASSIGN(
        Collective sum,
        communicator_.all_reduce(bytes, bytes, count_, DType::kFloat32, Reduction::kSum));
    return sum.wait(deadline_);
  }

  Result<double> time_one() {
    STRETTO_TRY_ASSIGN(Collective barrier, communicator_.barrier());
    STRETTO_TRY(barrier.wait(deadline_));
    const TimePoint start = Clock::now();
    const std::chrono::duration<double, std::milli> late(options_.late_ms);
    if (options_.late_ms > 0 && communicator_.rank() + 1 == communicator_.size()) {
      std::this_thread::sleep_for(late);
    }
    STRETTO_TRY(all_reduce());
    const std::chrono::duration<double> took = Clock::now() - start - late;
    return took.count();
  }

  Result<double> median_of_slowest(const std::vector<double>& times) {
    ByteWriter writer;
    for (const double time : times) {
      writer.put(time);
    }
    STRETTO_TRY_ASSIGN(const auto blobs,
                       group_.control().all_gather("times", writer.bytes(), deadline_));
    std::vector<double> slowest(times.size(), 0);
    for (const auto& blob : blobs) {
      ByteReader reader(blob);
      for (double& time : slowest) {
        time = std::max(time, reader.get<double>());
      }
    }
    std::sort(slowest.begin(), slowest.end());
    return 1e6 * slowest[slowest.size() / 2];
  }

  /// How many elements of one more sum are wrong, on all ranks together.
  Result<std::uint64_t> check() {
    for (std::size_t i = 0; i < count_; ++i) {
      data_[i] = static_cast<float>((communicator_.rank() * 7 + i) % 1021);
    }
    STRETTO_TRY(all_reduce());
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      float expected = 0;
      for (std::size_t rank = 0; rank < communicator_.size(); ++rank) {
        expected += static_cast<float>((rank * 7 + i) % 1021);
      }
      wrong += data_[i] == expected ? 0 : 1;
    }
    ByteWriter writer;
    writer.put(wrong);
    STRETTO_TRY_ASSIGN(const auto blobs,
                       group_.control().all_gather("mismatches", writer.bytes(), deadline_));
    std::uint64_t total = 0;
    for (const auto& blob : blobs) {
      total += ByteReader(blob).get<std::uint64_t>();
    }
    return total;
  }

  Group& group_;
  Communicator& communicator_;
  const BenchOptions& options_;
  Deadline deadline_;
  float* data_ = nullptr;
  std::size_t count_ = 0;
};

void print(const Figure& figure,
           const Communicator& communicator,
           const BenchOptions& options,
           bool json) {
  const auto ranks = static_cast<double>(communicator.size());
  const double algbw =
      figure.median_us > 0 ? static_cast<double>(figure.bytes) / figure.median_us / 1e3 : 0;
  const double busbw = algbw * 2 * (ranks - 1) / ranks;
  if (json) {
    nlohmann::ordered_json line{{"bytes", figure.bytes},
                                {"median_us", figure.median_us},
                                {"algbw_gbps", algbw},
                                {"busbw_gbps", busbw},
                                {"memory", figure.memory},
                                {"ranks", communicator.size()},
                                {"exchange", communicator.exchange_name()},
                                {"order", communicator.order_name()},
                                {"repetitions", figure.repetitions},
                                {"late_ms", options.late_ms},
                                {"mismatches", figure.mismatches}};
    std::cout << line.dump() << std::endl;
    return;
  }
  std::printf("%12zu  %-6s  %12.1f  %8.2f  %8.2f%s\n",
              figure.bytes,
              figure.memory.c_str(),
              figure.median_us,
              algbw,
              busbw,
              figure.mismatches > 0 ? "  WRONG" : "");
  static_cast<void>(std::fflush(stdout));
}

Result<int> be_a_rank(const BenchOptions& options, const Context& context) {
  std::vector<std::size_t> sizes;
  for (const std::string& text : options.sizes) {
    STRETTO_TRY_ASSIGN(const std::size_t bytes, parse_bytes(text));
    sizes.push_back(bytes);
  }
  STRETTO_TRY_ASSIGN(const GroupOptions joining, GroupOptions::from_environment());
  STRETTO_TRY_ASSIGN(const EngineOptions settings, EngineOptions::from_environment());
  STRETTO_TRY_ASSIGN(auto group, Group::join(joining));
  STRETTO_TRY_ASSIGN(auto communicator, Communicator::create(group, settings));
  const bool speaks = communicator->rank() == 0;
  if (speaks && !context.json) {
    std::printf("all-reduce of %zu ranks, exchange %s (order %s), float32, in place\n",
                communicator->size(),
                communicator->exchange_name().c_str(),
                communicator->order_name().c_str());
    std::printf("       bytes  memory     median us  alg GB/s  bus GB/s\n");
  }
  std::uint64_t mismatches = 0;
  for (const std::string& memory : options.memory) {
    for (const std::size_t bytes : sizes) {
      Series series(*group, *communicator, options, Deadline::after(std::chrono::minutes(10)));
      STRETTO_TRY_ASSIGN(const Figure figure, series.measure(memory, bytes));
      mismatches += figure.mismatches;
      if (speaks) {
        print(figure, *communicator, options, context.json);
      }
    }
  }
  STRETTO_TRY(communicator->close(Deadline::after(std::chrono::seconds(5))));
  group->leave();
  return mismatches == 0 ? kExitOk : kExitCheckFailed;
}

Result<int> bench(const BenchOptions& options, const Context& context) {
  if (!options.link.empty()) {
    ::setenv("STRETTO_LINK", options.link.c_str(), 1);
  }
  if (!options.exchange.empty()) {
    ::setenv("STRETTO_EXCHANGE", options.exchange.c_str(), 1);
  }
  if (!options.order.empty()) {
    ::setenv("STRETTO_ORDER", options.order.c_str(), 1);
  }
  const char* rank = std::getenv("RANK");
  if (rank == nullptr || *rank == '\0') {
    STRETTO_TRY(start_ranks(options, context));
  }
  return be_a_rank(options, context);
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  // Shared by the parser, which fills it, and the callback, which reads it.
  const auto options = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand("bench", "Measure one thing at a time");
  command->require_subcommand(1);
  command->footer(
      "Examples:\n"
      "  stretto bench allreduce -n 2\n"
      "  stretto bench codec --codec int8\n"
      "  stretto bench convergence\n"
      "  stretto bench allreduce --help");
  add_bench_codec(*command, context);
  add_bench_convergence(*command, context);
  CLI::App* allreduce =
      command->add_subcommand("allreduce", "Time of one all-reduce, by size and by kind of memory");
  allreduce->add_option("-n,--ranks", options->ranks, "Ranks to start, where RANK is not set")
      ->check(CLI::Range(1, 256));
  allreduce->add_option("--sizes", options->sizes, "Bytes, for example 1k 4m (powers of 1024)")
      ->delimiter(',');
  allreduce
      ->add_option("--memory",
                   options->memory,
                   "arena: from the communicator, which is fastest; user: any other")
      ->delimiter(',')
      ->check(CLI::IsMember({"arena", "user"}));
  allreduce->add_option("--link", options->link, "Emulate a link: RATE[,DELAY]");
  allreduce->add_option("--exchange", options->exchange, "auto, owner, shared, ring or mpi");
  allreduce->add_option(
      "--order", options->order, "Of sums: rank (default), or any for ring and mpi");
  allreduce->add_option("--repetitions", options->repetitions, "Of each size (default 9 to 300)");
  allreduce
      ->add_option(
          "--late-ms", options->late_ms, "The last rank comes so late; times are counted from then")
      ->check(CLI::Range(0.0, 60'000.0));
  allreduce->footer(
      "Examples:\n"
      "  stretto bench allreduce -n 2\n"
      "  stretto bench allreduce -n 4 --link 1gbit --sizes 4m,16m --memory user --json\n"
      "  stretto run -n 2 --nnodes 2 --node-rank 0 --master 10.0.0.1 -- stretto bench allreduce\n"
      "algbw is bytes by time, busbw that times 2 (P - 1) / P, both in GB/s of 1e9 bytes.\n"
      "Ends with 1 if a sum was wrong.");
  allreduce->callback([options, &context] {
    const auto code = bench(*options, context);
    if (code) {
      context.exit_code = *code;
    } else {
      fail_with(context, "bench", code.error());
    }
  });
}

}  // namespace stretto::cli

// SPDX-License-Identifier: Apache-2.0
// Means through codecs: the same bits on all ranks and whatever the schedule, chunk size,
// transport, number of codec threads and instruction set, and those of a plain program that calls
// the codec for one segment after the other.
#include "base/hash.hpp"
#include "codec/factory.hpp"
#include "device/adversarial/factory.hpp"
#include "engine/codec_choice.hpp"
#include "kernels/kernels.hpp"
#include "registry/registry.hpp"
#include "schedule/layout.hpp"
#include "tests/threads_as_ranks.hpp"
#include "transport/ucx/factory.hpp"

#include "stretto/engine.hpp"
#include "stretto/spi/conformance/repetition.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace stretto {
namespace {

constexpr std::size_t kSteps = 4;

/// Matrices of several segments and of less than one, one that is too small for a codec, a bias.
std::vector<ParameterSpec> model() {
  return {{"large.weight", {300, 1001}},
          {"bias", {700}},
          {"small.weight", {40, 100}},
          {"tiny.weight", {3, 5}},
          {"empty.weight", {0, 64}},
          {"last.weight", {16, 64, 3, 3}}};
}

std::size_t elements(const ParameterSpec& spec) {
  return element_count(spec.shape);
}

/// Of one rank, step and parameter; of different sizes, some of them zero.
std::vector<float> draw(std::size_t rank, std::size_t step, std::size_t parameter, std::size_t n) {
  std::uint64_t state = (step * 16 + rank) * 64 + parameter + 1;
  std::vector<float> numbers(n);
  for (float& number : numbers) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const auto whole = static_cast<float>(static_cast<std::int32_t>(state >> 32));
    number = (state >> 24 & 15U) == 0 ? 0.0F
                                      : std::ldexp(whole, -31 - static_cast<int>(state >> 16 & 7U));
  }
  return numbers;
}

/// Samples of a rank in a step: different, and sometimes none.
std::uint64_t samples_of(std::size_t rank, std::size_t step) {
  return rank == 1 && step == 2 ? 0 : 3 + (rank + 2 * step) % 5;
}

using Values = std::vector<std::vector<float>>;  ///< by parameter

std::uint64_t hash_of(const Values& values, std::uint64_t hash) {
  for (const auto& one : values) {
    hash = hash_bytes(std::as_bytes(std::span(one)), hash);
  }
  return hash;
}

/// What one place keeps for a segment.
struct Keep {
  std::vector<float> residual;
  std::vector<float> left;
  std::vector<float> state;
  std::vector<float> next_state;
  std::vector<float> scratch;

  Keep(const spi::Codec& codec, const spi::CodecSegment& segment)
      : residual(segment.element_count),
        left(segment.element_count),
        state(codec.state_floats(segment)),
        next_state(state.size()),
        scratch(codec.scratch_floats(segment)) {}
  spi::CodecMemory memory(bool feedback, float factor) {
    spi::CodecMemory memory;
    memory.residual = feedback ? residual.data() : nullptr;
    memory.left = feedback ? left.data() : nullptr;
    memory.factor = factor;
    memory.state = state.data();
    memory.next_state = next_state.data();
    memory.scratch = scratch.data();
    return memory;
  }
  void turn() {
    residual.swap(left);
    state.swap(next_state);
  }
};

/// One segment of all ranks without an engine.
class PlainSegment {
 public:
  PlainSegment(const spi::Codec& codec, const spi::CodecSegment& segment, std::size_t ranks)
      : codec_(codec),
        segment_(segment),
        keep_(ranks, Keep(codec, segment)),
        owner_(codec, segment) {}

  /// The mean in one step.
  std::vector<float> step(std::size_t step, const std::vector<std::vector<float>>& gradients) {
    std::uint64_t total = 0;
    for (std::size_t rank = 0; rank < keep_.size(); ++rank) {
      total += samples_of(rank, step);
    }
    const auto scale = static_cast<float>(1.0 / static_cast<double>(total));
    std::vector<float> mean(segment_.element_count);
    for (unsigned round = 0; round < codec_.traits().rounds; ++round) {
      const auto wire = reduce(round, step, gradients, scale);
      for (std::size_t rank = 0; rank < keep_.size(); ++rank) {
        const Status decoded = codec_.decode(segment_,
                                             round_of(round, step, rank),
                                             wire,
                                             memory_of(rank, step),
                                             std::as_writable_bytes(std::span(mean)));
        EXPECT_TRUE(decoded.is_ok()) << decoded.to_string();
      }
    }
    for (std::size_t rank = 0; rank < keep_.size(); ++rank) {
      if (samples_of(rank, step) == 0) {
        keep_[rank].left = keep_[rank].residual;
        if (codec_.traits().rounds == 1) {
          keep_[rank].next_state = keep_[rank].state;
        }
      } else {
        weighted_by_[rank] = samples_of(rank, step);
      }
      keep_[rank].turn();
    }
    owner_.turn();
    return mean;
  }

 private:
  spi::CodecRound round_of(unsigned round, std::size_t step, std::size_t source) const {
    return {round,
            step + 1,
            static_cast<std::uint32_t>(source),
            static_cast<std::uint32_t>(keep_.size())};
  }
  spi::CodecMemory memory_of(std::size_t rank, std::size_t step) {
    const std::uint64_t before = weighted_by_[rank];
    const std::uint64_t now = samples_of(rank, step);
    const double factor =
        before > 0 && now > 0 ? static_cast<double>(before) / static_cast<double>(now) : 1.0;
    return keep_[rank].memory(codec_.traits().feedback, static_cast<float>(factor));
  }
  std::vector<std::byte> reduce(unsigned round,
                                std::size_t step,
                                const std::vector<std::vector<float>>& gradients,
                                float scale) {
    std::vector<float> sums(codec_.sum_floats(segment_, round), 0.0F);
    std::vector<std::byte> wire(codec_.most_wire_bytes(segment_, round));
    for (std::size_t rank = 0; rank < keep_.size(); ++rank) {
      if (samples_of(rank, step) == 0) {
        continue;
      }
      const auto done = codec_.encode(segment_,
                                      round_of(round, step, rank),
                                      std::as_bytes(std::span(gradients[rank])),
                                      memory_of(rank, step),
                                      wire);
      EXPECT_TRUE(done.has_value()) << done.error().to_string();
      const auto weight = static_cast<float>(samples_of(rank, step));
      const Status added = codec_.absorb(segment_,
                                         round_of(round, step, rank),
                                         std::span(wire).first(done->wire_bytes),
                                         weight,
                                         sums);
      EXPECT_TRUE(added.is_ok()) << added.to_string();
    }
    const auto done = codec_.conclude(segment_,
                                      round_of(round, step, keep_.size()),
                                      sums,
                                      scale,
                                      owner_.memory(codec_.traits().feedback, 1),
                                      wire);
    EXPECT_TRUE(done.has_value()) << done.error().to_string();
    wire.resize(done->wire_bytes);
    return wire;
  }

  const spi::Codec& codec_;
  spi::CodecSegment segment_;
  std::vector<Keep> keep_;
  Keep owner_;
  std::map<std::size_t, std::uint64_t> weighted_by_;
};

/// Hash of the means of all steps, without an engine.
std::uint64_t plainly_computed(const std::string& codec, std::size_t ranks) {
  const auto specs = model();
  EngineOptions options;
  options.codec = codec;
  const auto coding = engine::choose_codecs(specs, options).value();
  auto layout = schedule::make_layout(specs, std::nullopt, coding);
  schedule::make_groups(layout, specs, coding, ranks, std::size_t{64} << 10);
  std::vector<PlainSegment> segments;
  for (const spi::CodedSegment& segment : layout.segments) {
    segments.emplace_back(*coding.codecs[1], segment.segment, ranks);
  }
  std::uint64_t hash = 0;
  for (std::size_t step = 0; step < kSteps; ++step) {
    Values means;
    std::vector<std::size_t> done(specs.size(), 0);
    double total = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      total += static_cast<double>(samples_of(rank, step));
    }
    for (std::size_t p = 0; p < specs.size(); ++p) {
      means.emplace_back(elements(specs[p]), 0.0F);
      if (coding.of_parameter[p] != 0) {
        continue;
      }
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const auto mine = draw(rank, step, p, means[p].size());
        const auto weight = static_cast<float>(samples_of(rank, step));
        for (std::size_t i = 0; i < mine.size() && weight > 0; ++i) {
          means[p][i] += weight * mine[i];
        }
      }
      for (float& value : means[p]) {
        value *= static_cast<float>(1.0 / total);
      }
    }
    for (std::size_t s = 0; s < segments.size(); ++s) {
      const std::size_t p = index_of(layout.segment_parameters[s]);
      const std::size_t count = layout.segments[s].segment.element_count;
      const auto first = static_cast<std::ptrdiff_t>(done[p]);
      const auto end = static_cast<std::ptrdiff_t>(done[p] + count);
      std::vector<std::vector<float>> gradients;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const auto mine = draw(rank, step, p, elements(specs[p]));
        gradients.emplace_back(mine.begin() + first, mine.begin() + end);
      }
      const auto mean = segments[s].step(step, gradients);
      std::copy(mean.begin(), mean.end(), means[p].begin() + first);
      done[p] += count;
    }
    hash = hash_of(means, hash);
  }
  return hash;
}

std::uint64_t expected_of(const std::string& codec, std::size_t ranks) {
  static std::map<std::pair<std::string, std::size_t>, std::uint64_t> known;
  auto [found, is_new] = known.try_emplace({codec, ranks}, 0);
  if (is_new) {
    found->second = plainly_computed(codec, ranks);
  }
  return found->second;
}

/// What one rank's engine gives in all steps.
std::uint64_t train(const std::shared_ptr<Group>& group, const EngineOptions& options) {
  const auto specs = model();
  const std::size_t rank = index_of(group->rank());
  auto engine = Engine::create(group, options).value();
  for (const ParameterSpec& spec : specs) {
    EXPECT_TRUE(engine->add_parameter(spec).has_value());
  }
  const Status committed = engine->commit();
  EXPECT_TRUE(committed.is_ok()) << committed.to_string();
  std::uint64_t hash = 0;
  for (std::size_t step = 0; step < kSteps && committed.is_ok(); ++step) {
    Values mine;
    StepOptions begin;
    begin.samples = samples_of(rank, step);
    EXPECT_TRUE(engine->begin_step(begin).is_ok());
    for (std::size_t p = 0; p < specs.size(); ++p) {
      mine.push_back(draw(rank, step, p, elements(specs[p])));
    }
    for (std::size_t p = specs.size(); p-- > 0;) {
      const auto* gradient = reinterpret_cast<const std::byte*>(mine[p].data());
      EXPECT_TRUE(engine->ready(ParameterId{static_cast<std::uint32_t>(p)}, gradient).is_ok());
    }
    const auto report = engine->finish_step();
    EXPECT_TRUE(report.has_value()) << report.error().to_string();
    if (!report) {
      return 0;
    }
    Values means;
    for (std::size_t p = 0; p < specs.size(); ++p) {
      const auto* mean = reinterpret_cast<const float*>(
          engine->result(ParameterId{static_cast<std::uint32_t>(p)}));
      means.emplace_back(mean, mean + elements(specs[p]));
    }
    hash = hash_of(means, hash);
  }
  EXPECT_TRUE(engine->shutdown().is_ok());
  return hash;
}

void expect_the_hash(const EngineOptions& options, std::size_t ranks) {
  std::vector<std::uint64_t> hashes(ranks);
  testing::run_ranks(ranks, [&](const std::shared_ptr<Group>& group) {
    hashes[index_of(group->rank())] = train(group, options);
  });
  const std::uint64_t expected = expected_of(options.codec, ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(hashes[rank], expected) << "rank " << rank;
  }
}

// Under sanitizers, which are ten times slower, each case goes once.
constexpr bool kAll = spi::conformance::kRepetition > 1;

template <typename T>
std::vector<T> all_or(const std::vector<T>& all, const T& one) {
  return kAll ? all : std::vector<T>{one};
}

/// One of each kind is enough for sanitizers: of fixed length, of any length, of several rounds.
std::vector<std::string> codecs() {
  const auto names = codec::codec_names();
  return kAll ? std::vector<std::string>(names.begin(), names.end())
              : std::vector<std::string>{"int8", "topk:1%", "powersgd:4"};
}

std::string word(std::string text) {
  std::replace_if(
      text.begin(),
      text.end(),
      [](unsigned char letter) { return std::isalnum(letter) == 0; },
      '_');
  return text;
}

class CodecHash : public ::testing::TestWithParam<std::string> {
 protected:
  static EngineOptions options() {
    EngineOptions chosen;
    chosen.codec = GetParam();
    return chosen;
  }
};

TEST_P(CodecHash, IsThatOfThePlainProgramWhateverTheChunkSizeAndSchedule) {
  for (const std::size_t ranks : all_or<std::size_t>({1, 2, 3}, 2)) {
    for (const std::size_t chunk_bytes :
         all_or<std::size_t>({std::size_t{64} << 10, EngineOptions::kAutomatic}, 64 << 10)) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, chunks of " + std::to_string(chunk_bytes));
      EngineOptions chosen = options();
      chosen.chunk_bytes = chunk_bytes;
      chosen.schedule = ranks == 2 ? Schedule::kSequential : Schedule::kBackward;
      expect_the_hash(chosen, ranks);
    }
  }
}

TEST_P(CodecHash, IsTheSameOverEveryTransportAndWithSeveralThreads) {
  for (const std::string& transport : all_or<std::string>({"inproc", "tcp", "ucx"}, "tcp")) {
    if (transport == "ucx" && !transport::ucx_version()) {
      continue;  // built without UCX
    }
    SCOPED_TRACE(transport);
    EngineOptions chosen = options();
    chosen.transport = transport;
    chosen.codec_threads = 3;
    expect_the_hash(chosen, 3);
  }
}

TEST_P(CodecHash, IsTheSameOnEveryInstructionSet) {
  const std::string before(kernels::target_name());
  for (const std::string_view target : all_or(kernels::available_targets(), {"scalar"})) {
    SCOPED_TRACE(target);
    ASSERT_TRUE(kernels::select_target(target).is_ok());
    expect_the_hash(options(), 2);
  }
  ASSERT_TRUE(kernels::select_target(before).is_ok());
}

std::atomic<std::uint64_t> adversary_seed{0};

Result<std::unique_ptr<spi::Device>> make_adversary() {
  return device::make_adversarial_device(adversary_seed.fetch_add(1));
}

TEST_P(CodecHash, IsTheSameOnADeviceThatRunsWorkAsLateAsItMay) {
  adversary_seed = 100;
  registry::replace_device_for_tests(&make_adversary);
  expect_the_hash(options(), 3);
  registry::replace_device_for_tests(nullptr);
}

INSTANTIATE_TEST_SUITE_P(All, CodecHash, ::testing::ValuesIn(codecs()), [](const auto& test) {
  return word(test.param);
});

}  // namespace
}  // namespace stretto

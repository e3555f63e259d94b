// SPDX-License-Identifier: Apache-2.0
// What codecs keep between the steps: nothing of a gradient is lost, steps can be taken back, and a
// run that stops and goes on is the same run.
#include "checkpoint/safetensors.hpp"
#include "checkpoint/test_folder.hpp"
#include "codec/factory.hpp"
#include "tests/threads_as_ranks.hpp"

#include "stretto/engine.hpp"
#include "stretto/spi/conformance/repetition.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace stretto {
namespace {

using Values = std::vector<std::vector<float>>;  ///< by parameter

std::vector<ParameterSpec> model() {
  return {{"first.weight", {40, 900}}, {"bias", {33}}, {"second.weight", {64, 50}}};
}

Values draw(std::size_t rank, std::size_t step) {
  Values values;
  std::uint64_t state = step * 16 + rank + 1;
  for (const ParameterSpec& spec : model()) {
    auto& one = values.emplace_back(element_count(spec.shape));
    for (float& number : one) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      number = std::ldexp(static_cast<float>(static_cast<std::int32_t>(state >> 32)), -31);
    }
  }
  return values;
}

std::uint64_t samples_of(std::size_t rank, std::size_t step) {
  return 2 + (rank + step) % 3;
}

/// One rank of a job.
class Job {
 public:
  Job(const std::shared_ptr<Group>& group, const EngineOptions& options)
      : rank_(index_of(group->rank())), engine_(Engine::create(group, options).value()) {
    for (const ParameterSpec& spec : model()) {
      EXPECT_TRUE(engine_->add_parameter(spec).has_value());
    }
    const Status committed = engine_->commit();
    EXPECT_TRUE(committed.is_ok()) << committed.to_string();
  }

  Values step(std::size_t number) { return step(number, draw(rank_, number)); }
  Values step(std::size_t number, const Values& gradients) {
    StepOptions begin;
    begin.samples = samples_of(rank_, number);
    EXPECT_TRUE(engine_->begin_step(begin).is_ok());
    for (std::size_t p = gradients.size(); p-- > 0;) {
      const auto* gradient = reinterpret_cast<const std::byte*>(gradients[p].data());
      EXPECT_TRUE(engine_->ready(ParameterId{static_cast<std::uint32_t>(p)}, gradient).is_ok());
    }
    const auto report = engine_->finish_step();
    EXPECT_TRUE(report.has_value()) << report.error().to_string();
    report_ = report.value_or(StepReport{});
    Values means;
    for (std::size_t p = 0; p < gradients.size(); ++p) {
      const auto* mean = reinterpret_cast<const float*>(
          engine_->result(ParameterId{static_cast<std::uint32_t>(p)}));
      means.emplace_back(mean, mean + gradients[p].size());
    }
    return means;
  }
  std::vector<Values> steps(std::size_t first, std::size_t end) {
    std::vector<Values> all;
    for (std::size_t number = first; number < end; ++number) {
      all.push_back(step(number));
    }
    return all;
  }
  const StepReport& report() const { return report_; }
  Engine& engine() { return *engine_; }
  std::size_t rank() const { return rank_; }

 private:
  std::size_t rank_;
  std::unique_ptr<Engine> engine_;
  StepReport report_;
};

/// Runs a job of so many ranks, and ends it.
void run(std::size_t ranks, const EngineOptions& options, const std::function<void(Job&)>& body) {
  testing::run_ranks(ranks, [&](const std::shared_ptr<Group>& group) {
    Job job(group, options);
    body(job);
    const Status ended = job.engine().shutdown();
    EXPECT_TRUE(ended.is_ok()) << ended.to_string();
  });
}

/// The sums that files of residuals stand for: of n_i r_i / N over the ranks, and of the owners'.
std::map<std::string, double> sums_of(const std::string& prefix, std::size_t ranks) {
  std::map<std::string, double> sums;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto file = checkpoint::SafetensorsFile::open(prefix + ".rank-" + std::to_string(rank) +
                                                        "-of-" + std::to_string(ranks))
                          .value();
    const auto& metadata = file.header().metadata;
    const double share = metadata.at("residuals.is_share") == "1"
                             ? 1.0
                             : std::stod(metadata.at("residuals.samples")) /
                                   std::stod(metadata.at("residuals.total_samples"));
    for (const auto& entry : file.header().tensors) {
      std::vector<float> values((entry.end - entry.begin) / sizeof(float));
      EXPECT_TRUE(file.read(entry, std::as_writable_bytes(std::span(values))).is_ok());
      const bool is_state = entry.name.starts_with("state.");
      for (std::size_t i = 0; i < values.size() && !is_state; ++i) {
        const bool owned = entry.name.starts_with("owner.");
        sums[entry.name.substr(entry.name.find('.')) + "[" + std::to_string(i) + "]"] +=
            (owned ? 1.0 : share) * static_cast<double>(values[i]);
      }
    }
  }
  return sums;
}

/// Of each kind one where sanitizers make all ten times slower.
std::vector<std::string> all_codecs() {
  const auto names = codec::codec_names();
  return spi::conformance::kRepetition > 1
             ? std::vector<std::string>(names.begin(), names.end())
             : std::vector<std::string>{"int8", "topk:1%", "powersgd:4"};
}

class CodecState : public ::testing::TestWithParam<std::string> {
 protected:
  static EngineOptions options() {
    EngineOptions chosen;
    chosen.codec = GetParam();
    return chosen;
  }
  /// As sums_of names an element.
  std::string key_of(std::size_t parameter, std::size_t element) const {
    const auto& traits = codec_->traits();
    const std::size_t length = traits.whole_parameter ? SIZE_MAX : traits.segment_elements;
    const std::size_t first = element / length * length;
    return "." + model()[parameter].name + "." + std::to_string(first) + "[" +
           std::to_string(element - first) + "]";
  }
  bool has_feedback() const { return codec_->traits().feedback; }
  std::string prefix() const { return folder_.path("state"); }

  checkpoint::TestFolder folder_;
  std::shared_ptr<const spi::Codec> codec_ = codec::make_codec(GetParam()).value();
};

TEST_P(CodecState, ARunThatStopsAndGoesOnIsTheSameRun) {
  std::vector<Values> whole;
  run(3, options(), [&](Job& job) {
    const auto all = job.steps(0, 6);
    if (job.rank() == 2) {
      whole = all;
    }
  });
  run(3, options(), [&](Job& job) {
    job.steps(0, 3);
    const Status saved = job.engine().save_residuals(prefix(), 3);
    EXPECT_TRUE(saved.is_ok()) << saved.to_string();
  });
  run(3, options(), [&](Job& job) {
    const auto loaded = job.engine().load_residuals(prefix(), 3, 3);
    ASSERT_TRUE(loaded.has_value()) << loaded.error().to_string();
    EXPECT_TRUE(loaded->missing.empty());
    const auto rest = job.steps(3, 6);
    for (std::size_t i = 0; i < rest.size(); ++i) {
      EXPECT_EQ(rest[i], whole[3 + i]) << "step " << 3 + i << ", rank " << job.rank();
    }
  });
}

TEST_P(CodecState, AStepThatIsTakenBackHasNotBeen) {
  std::vector<Values> expected;
  run(2, options(), [&](Job& job) {
    const auto all = job.steps(0, 4);
    if (job.rank() == 0) {
      expected = all;
    }
  });
  run(2, options(), [&](Job& job) {
    std::vector<Values> all = job.steps(0, 2);
    job.step(17);  // another gradient, which the optimizer does not take
    EXPECT_TRUE(job.engine().discard_residuals().is_ok());
    EXPECT_EQ(job.engine().discard_residuals().code(), StatusCode::kInvalidArgument);
    for (const Values& one : job.steps(2, 4)) {
      all.push_back(one);
    }
    EXPECT_EQ(all, expected) << "rank " << job.rank();
  });
}

/// What is sent and what is left is all there was, whoever owns what and however many ranks.
TEST_P(CodecState, FourRanksThreeAndFourAgainLoseNothing) {
  if (!has_feedback()) {
    return;  // nothing is kept that could be lost
  }
  run(4, options(), [&](Job& job) {
    job.steps(0, 3);
    EXPECT_TRUE(job.engine().save_residuals(prefix() + "A", 3).is_ok());
  });
  Values mean;
  run(3, options(), [&](Job& job) {
    ASSERT_TRUE(job.engine().load_residuals(prefix() + "A", 3, 4).has_value());
    EXPECT_TRUE(job.engine().save_residuals(prefix() + "B", 3).is_ok());
    const Values result = job.step(3);
    if (job.rank() == 1) {
      mean = result;
    }
    EXPECT_TRUE(job.engine().save_residuals(prefix() + "C", 4).is_ok());
  });
  run(4, options(), [&](Job& job) {
    ASSERT_TRUE(job.engine().load_residuals(prefix() + "C", 4, 3).has_value());
    EXPECT_TRUE(job.engine().save_residuals(prefix() + "D", 4).is_ok());
    job.step(4);
  });
  const auto before = sums_of(prefix() + "A", 4);
  const auto handed = sums_of(prefix() + "B", 3);
  const auto after = sums_of(prefix() + "C", 3);
  const auto again = sums_of(prefix() + "D", 4);
  ASSERT_EQ(before.size(), 40U * 900 + 64 * 50);
  // What three ranks had in the step between: their gradients, and what was left before.
  double total = 0;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    total += static_cast<double>(samples_of(rank, 3));
  }
  std::map<std::string, double> gradient;
  std::map<std::string, double> sent;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const Values mine = draw(rank, 3);
    for (const std::size_t p : {0U, 2U}) {
      for (std::size_t i = 0; i < mine[p].size(); ++i) {
        const std::string key = key_of(p, i);
        gradient[key] += static_cast<double>(samples_of(rank, 3)) / total * double{mine[p][i]};
        sent[key] = double{mean[p][i]};
      }
    }
  }
  for (const auto& [key, value] : before) {
    ASSERT_NEAR(handed.at(key), value, 1e-5) << key;
    ASSERT_NEAR(again.at(key), after.at(key), 1e-5) << key;
    ASSERT_NEAR(sent.at(key) + after.at(key), gradient.at(key) + value, 1e-4) << key;
  }
}

TEST_P(CodecState, WhatIsNotFiniteIsReportedAndStaysNowhere) {
  run(2, options(), [&](Job& job) {
    job.step(0);
    Values bad = draw(job.rank(), 1);
    if (job.rank() == 1) {
      bad[0][100] = std::numeric_limits<float>::quiet_NaN();
      bad[0][35'000] = std::numeric_limits<float>::infinity();
      bad[2][7] = -std::numeric_limits<float>::infinity();
    }
    const Values mean = job.step(1, bad);
    EXPECT_EQ(job.report().refused, job.rank() == 1 ? 3U : 0U);
    EXPECT_GE(job.report().non_finite, job.rank() == 1 ? 1U : 0U);
    for (const Values& values : {mean, job.step(2)}) {
      for (const auto& one : values) {
        EXPECT_TRUE(
            std::all_of(one.begin(), one.end(), [](float value) { return std::isfinite(value); }));
      }
    }
    EXPECT_EQ(job.report().refused, 0U);
    EXPECT_TRUE(std::isfinite(job.report().residual_ratio));
    EXPECT_EQ(job.report().residual_ratio > 0, has_feedback());
  });
}

INSTANTIATE_TEST_SUITE_P(All, CodecState, ::testing::ValuesIn(all_codecs()), [](const auto& test) {
  std::string name(test.param);
  std::replace_if(
      name.begin(),
      name.end(),
      [](unsigned char letter) { return std::isalnum(letter) == 0; },
      '_');
  return name;
});

EngineOptions with(const std::string& codec) {
  EngineOptions options;
  options.codec = codec;
  return options;
}

TEST(CodecFiles, OfAnotherModelStepOrCodecAreRefusedAndNothingIsChanged) {
  const checkpoint::TestFolder folder;
  const std::string prefix = folder.path("state");
  run(2, with("sign"), [&](Job& job) {
    job.steps(0, 2);
    EXPECT_TRUE(job.engine().save_residuals(prefix, 2).is_ok());
  });
  std::vector<Values> expected(2);
  run(2, with("int8"), [&](Job& job) {
    const auto loaded = job.engine().load_residuals(prefix, 2, 2);
    ASSERT_FALSE(loaded.has_value());
    EXPECT_NE(loaded.error().message().find("another model or other codecs"), std::string::npos);
  });
  run(2, with("sign"), [&](Job& job) { expected[job.rank()] = job.step(0); });
  run(2, with("sign"), [&](Job& job) {
    auto loaded = job.engine().load_residuals(prefix, 3, 2);
    ASSERT_FALSE(loaded.has_value());
    EXPECT_NE(loaded.error().message().find("of step 2 and not of step 3"), std::string::npos);
    loaded = job.engine().load_residuals(prefix + "x", 2, 2);
    ASSERT_FALSE(loaded.has_value());
    EXPECT_EQ(loaded.error().code(), StatusCode::kUnavailable);
    EXPECT_EQ(job.step(0), expected[job.rank()]);
  });
  // Cut short: the other rank's file is whole, but neither is taken over.
  std::filesystem::resize_file(prefix + ".rank-1-of-2", 5000);
  run(2, with("sign"), [&](Job& job) {
    const auto loaded = job.engine().load_residuals(prefix, 2, 2);
    ASSERT_FALSE(loaded.has_value());
    EXPECT_NE(loaded.error().message().find("rank-1-of-2"), std::string::npos);
    EXPECT_EQ(job.step(0), expected[job.rank()]);
  });
}

TEST(CodecFiles, AFileThatIsMissingIsReportedWithWhatIsLost) {
  const checkpoint::TestFolder folder;
  const std::string prefix = folder.path("state");
  run(3, with("int8"), [&](Job& job) {
    job.steps(0, 2);
    EXPECT_TRUE(job.engine().save_residuals(prefix, 2).is_ok());
  });
  std::filesystem::remove(prefix + ".rank-1-of-3");
  std::vector<std::size_t> lost(3);
  run(3, with("int8"), [&](Job& job) {
    const auto loaded = job.engine().load_residuals(prefix, 2, 3);
    ASSERT_TRUE(loaded.has_value()) << loaded.error().to_string();
    EXPECT_EQ(loaded->missing, std::vector<Rank>{Rank{1}});
    lost[job.rank()] = loaded->lost_segments;
    job.step(2);
  });
  EXPECT_EQ(lost[0], 0U);
  EXPECT_GT(lost[1], 0U);  // it owns again what it owned
  EXPECT_EQ(lost[2], 0U);
}

TEST(CodecChoice, ExchangesThatTakeNoCodecSaySo) {
  for (const ExchangeKind exchange : {ExchangeKind::kShared, ExchangeKind::kRing}) {
    EngineOptions options = with("int8");
    options.exchange = exchange;
    options.order = OrderChoice::kAny;
    testing::run_ranks(2, [&](const std::shared_ptr<Group>& group) {
      auto engine = Engine::create(group, options).value();
      ASSERT_TRUE(engine->add_parameter(model()[0]).has_value());
      const Status committed = engine->commit();
      EXPECT_NE(committed.message().find("takes no codec"), std::string::npos)
          << committed.to_string();
    });
  }
}

TEST(CodecChoice, ACodecThatOneRankDoesNotKnowIsNamedByAll) {
  testing::run_ranks(2, [&](const std::shared_ptr<Group>& group) {
    auto engine =
        Engine::create(group, with(index_of(group->rank()) == 0 ? "int8" : "int7")).value();
    ASSERT_TRUE(engine->add_parameter(model()[0]).has_value());
    const Status committed = engine->commit();
    EXPECT_NE(committed.message().find("int7"), std::string::npos) << committed.to_string();
  });
}

TEST(CodecChoice, RulesComeBeforeSizesAndShapes) {
  EngineOptions options = with("int8");
  options.codec_rules = "bias=fp16,second.*=none";
  run(2, options, [&](Job& job) {
    EXPECT_EQ(job.engine().codec(ParameterId{0}), "int8");
    EXPECT_EQ(job.engine().codec(ParameterId{1}), "fp16");
    EXPECT_EQ(job.engine().codec(ParameterId{2}), "none");
    job.steps(0, 2);
  });
}

TEST(CodecChoice, ValuesThatAreBroadcastTravelAsTheyAre) {
  run(3, with("sign"), [&](Job& job) {
    const Values expected = draw(0, 99);
    for (int round = 0; round < 2; ++round) {
      Values values = draw(job.rank(), 99);
      std::vector<std::byte*> memory;
      for (auto& one : values) {
        memory.push_back(reinterpret_cast<std::byte*>(one.data()));
      }
      EXPECT_TRUE(job.engine().broadcast(memory).is_ok());
      EXPECT_EQ(values, expected);
      job.step(static_cast<std::size_t>(round));
    }
  });
}

TEST(CodecChoice, TheAllGatherFormGivesAllRanksTheSameMean) {
  std::vector<Values> means(3);
  EngineOptions options = with("int8");
  options.exchange = ExchangeKind::kOneHop;
  run(3, options, [&](Job& job) { means[job.rank()] = job.steps(0, 3).back(); });
  EXPECT_EQ(means[1], means[0]);
  EXPECT_EQ(means[2], means[0]);
}

}  // namespace
}  // namespace stretto

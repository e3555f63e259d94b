// SPDX-License-Identifier: Apache-2.0
// ARCHITECTURE.md tells the day of a gradient, and which trace event each stop leaves.  Here two
// ranks train for real and their traces are held against it, so that the document cannot drift.
#include "tests/threads_as_ranks.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace stretto {
namespace {

constexpr std::size_t kRanks = 2;
constexpr std::uint64_t kSteps = 3;
// As the libtorch adapter registers them: the output layer first, as backward makes them.
const std::vector<std::string> kParameters{"output", "middle", "input"};

// Times are microseconds in floating point, and an end is a begin plus a length.
constexpr double kRounding = 0.001;

struct Span {
  double begin = 0;
  double end = 0;
};

/// One rank's trace: spans by step and name.
using Trace = std::map<std::uint64_t, std::map<std::string, Span>>;

Trace read_trace(const std::string& path) {
  std::ifstream file(path);
  Trace trace;
  for (const auto& event : nlohmann::json::parse(file)) {
    const std::string phase = event.at("ph");
    if (phase == "M") {
      continue;
    }
    const double at = event.at("ts");
    Span& span = trace[event.at("args").at("step")][event.at("name")];
    if (phase == "e") {
      span.end = at;
    } else {
      span = {at, at + event.value("dur", 0.0)};
    }
  }
  return trace;
}

/// One step whose input layer's gradient does not exist before the output layer's result is home.
Status train_step(Engine& engine, const std::vector<ParameterId>& ids) {
  STRETTO_TRY(engine.begin_step({}));
  STRETTO_TRY(engine.ready(ids[0]));
  STRETTO_TRY(engine.ready(ids[1]));
  STRETTO_TRY(engine.wait_gradient(ids[0]));
  STRETTO_TRY(engine.ready(ids[2]));
  STRETTO_TRY(engine.finish_step());
  return {};
}

Status train(const std::shared_ptr<Group>& group, const std::string& trace_file) {
  EngineOptions options;
  options.chunk_bytes = 0;  // a parameter each: chunk i is parameter i
  options.trace_file = trace_file;
  STRETTO_TRY_ASSIGN(auto engine, Engine::create(group, options));
  std::vector<ParameterId> ids;
  for (const std::string& name : kParameters) {
    STRETTO_TRY_ASSIGN(const auto id, engine->add_parameter({.name = name, .shape = {5000}}));
    ids.push_back(id);
  }
  STRETTO_TRY(engine->commit());
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    STRETTO_TRY(train_step(*engine, ids));
  }
  return engine->shutdown();  // and the destructor writes the trace
}

/// What the document lists, in its order: `[trace: NAME]`.
std::vector<std::string> events_of_the_document() {
  std::ifstream file(STRETTO_ARCHITECTURE);
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  const std::regex mark(R"(\[trace: ([a-z ]+)\])");
  std::vector<std::string> names;
  for (std::sregex_iterator it(all.begin(), all.end(), mark), end; it != end; ++it) {
    names.push_back((*it)[1]);
  }
  return names;
}

class TraceStory : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::filesystem::temp_directory_path() /
              ("stretto_trace_story." + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    const std::string file = folder_ / "trace";
    std::vector<Status> outcome(kRanks);
    testing::run_ranks(kRanks, [&](const std::shared_ptr<Group>& group) {
      outcome[index_of(group->rank())] = train(group, file);
    });
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      ASSERT_TRUE(outcome[rank].is_ok()) << outcome[rank].to_string();
      traces_.push_back(read_trace(file + "." + std::to_string(rank)));
    }
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(folder_); }

  void SetUp() override { ASSERT_EQ(traces_.size(), kRanks); }

  static inline std::filesystem::path folder_;
  static inline std::vector<Trace> traces_;
};

TEST_F(TraceStory, EveryEventOfTheDocumentIsInTheTraceAndNoOther) {
  const auto listed = events_of_the_document();
  const std::set<std::string> document(listed.begin(), listed.end());
  ASSERT_FALSE(document.empty()) << "no [trace: NAME] in " STRETTO_ARCHITECTURE;
  for (const Trace& trace : traces_) {
    std::set<std::string> recorded;
    for (const auto& [step, spans] : trace) {
      for (const auto& [name, span] : spans) {
        recorded.insert(name.substr(0, name.find(' ')));
      }
    }
    EXPECT_EQ(recorded, document);
  }
}

TEST_F(TraceStory, EachGradientLivesThroughItsDayInTheOrderOfTheDocument) {
  for (const Trace& trace : traces_) {
    ASSERT_EQ(trace.size(), kSteps);
    for (const auto& [step, spans] : trace) {
      const Span whole = spans.at("step");
      for (std::size_t p = 0; p < kParameters.size(); ++p) {
        SCOPED_TRACE(kParameters[p] + " in step " + std::to_string(step));
        const Span ready = spans.at("ready " + kParameters[p]);
        const Span taken = spans.at("taken " + kParameters[p]);
        const Span chunk = spans.at("chunk " + std::to_string(p));
        const Span home = spans.at("home " + kParameters[p]);
        EXPECT_LE(whole.begin, ready.begin);
        EXPECT_EQ(ready.begin, taken.begin);
        EXPECT_LE(taken.end, chunk.begin + kRounding);
        EXPECT_LE(chunk.begin, chunk.end);
        EXPECT_LE(chunk.end, home.begin);
        EXPECT_LE(home.begin, whole.end + kRounding);
      }
      const Span wait = spans.at("wait");
      EXPECT_LE(spans.at("ready input").begin, wait.begin);
      EXPECT_LE(whole.end, wait.end + kRounding);
    }
  }
}

TEST_F(TraceStory, TheOutputLayerIsFirstOnTheWireAndHomeBeforeTheInputLayerIsReady) {
  for (const Trace& trace : traces_) {
    for (const auto& [step, spans] : trace) {
      const Span first = spans.at("chunk 0");
      for (const auto& [name, span] : spans) {
        if (name.starts_with("chunk ")) {
          EXPECT_LE(first.begin, span.begin) << name << " in step " << step;
        }
      }
      EXPECT_LE(spans.at("home output").begin, spans.at("ready input").begin) << "step " << step;
    }
  }
}

TEST_F(TraceStory, TheDocumentTellsThemInTheOrderInWhichTheyHappen) {
  // When each kind of event first ends in a step of the real trace.
  std::map<std::string, double> ends;
  for (const auto& [name, span] : traces_[0].begin()->second) {
    const std::string kind = name.substr(0, name.find(' '));
    const auto found = ends.find(kind);
    ends[kind] = found == ends.end() ? span.end : std::min(found->second, span.end);
  }
  const auto listed = events_of_the_document();
  for (std::size_t i = 1; i < listed.size(); ++i) {
    EXPECT_LE(ends[listed[i - 1]], ends[listed[i]] + kRounding)
        << listed[i - 1] << " is told before " << listed[i];
  }
}

}  // namespace
}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
#include "trace/chrome_writer.hpp"
#include "trace/recorder.hpp"

#include <cstdio>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace stretto::trace {
namespace {

Span span_at(std::uint32_t id, int begin_us, int end_us, What what) {
  return {what,
          Lane::kWire,
          id,
          7,
          TimePoint(std::chrono::microseconds(begin_us)),
          TimePoint(std::chrono::microseconds(end_us))};
}

TEST(Recorder, KeepsTheLastSpansAndCountsTheLost) {
  Recorder recorder(3);
  for (std::uint32_t i = 0; i < 5; ++i) {
    recorder.add(span_at(i, 0, 1, What::kChunk));
  }
  const auto spans = recorder.spans();
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans.front().id, 2U);
  EXPECT_EQ(spans.back().id, 4U);
  EXPECT_EQ(recorder.lost(), 2U);
}

TEST(Recorder, WithoutCapacityItRecordsNothing) {
  Recorder recorder(0);
  recorder.add(span_at(1, 0, 1, What::kChunk));
  EXPECT_TRUE(recorder.spans().empty());
}

TEST(ChromeTrace, IsValidJsonWithNamesAndTimes) {
  const std::string path = ::testing::TempDir() + "trace_test.json";
  const std::vector<Span> spans{span_at(0, 10, 10, What::kReady),
                                span_at(4, 20, 50, What::kChunk),
                                span_at(0, 60, 75, What::kWait),
                                span_at(0, 10, 15, What::kTaken)};
  ASSERT_TRUE(
      write_chrome_trace(path, Rank{2}, spans, [](std::uint32_t) { return "fc.weight"; }).is_ok());
  std::ifstream file(path);
  const auto events = nlohmann::json::parse(file);
  const auto& ready = events[5];
  EXPECT_EQ(ready["name"], "ready fc.weight");
  EXPECT_EQ(ready["pid"], 2);
  EXPECT_EQ(ready["ts"], 10.0);
  EXPECT_EQ(events[6]["ph"], "b");
  EXPECT_EQ(events[7]["ph"], "e");
  EXPECT_EQ(events[8]["dur"], 15.0);
  EXPECT_EQ(events[9]["name"], "taken fc.weight");
  EXPECT_EQ(events[9]["ph"], "b");  // gradients are taken side by side, as chunks travel
  EXPECT_EQ(events[9]["id"], events[10]["id"]);
  EXPECT_NE(events[9]["cat"], events[6]["cat"]);
  std::remove(path.c_str());
}

TEST(ChromeTrace, FullDiskIsOneClearLine) {
  const std::vector<Span> spans(5000, span_at(0, 0, 1, What::kWait));
  const auto status =
      write_chrome_trace("/dev/full", Rank{0}, spans, [](std::uint32_t) { return ""; });
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("/dev/full: No space left"), std::string::npos);
}

TEST(ChromeTrace, FolderThatDoesNotExistIsOneClearLine) {
  const auto status =
      write_chrome_trace("/nowhere/t.json", Rank{0}, {}, [](std::uint32_t) { return ""; });
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace stretto::trace

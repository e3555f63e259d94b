// SPDX-License-Identifier: Apache-2.0
#include "trace/chrome_writer.hpp"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

namespace stretto::trace {
namespace {

double microseconds(TimePoint when) {
  return std::chrono::duration<double, std::micro>(when.time_since_epoch()).count();
}

std::string label(const Span& span,
                  const std::function<std::string(std::uint32_t)>& parameter_name) {
  const std::string what = to_string(span.what);
  switch (span.what) {
    case What::kReady:
    case What::kTaken:
    case What::kHome:
      return what + " " + parameter_name(span.id);
    case What::kChunk:
      return what + " " + std::to_string(span.id);
    case What::kWait:
    case What::kStep:
    case What::kReplan:
      break;
  }
  return what;
}

/// Writes line by line, so that a long trace needs no second copy in memory.
class Writer {
 public:
  explicit Writer(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "w")) {}
  ~Writer() {
    if (file_ != nullptr) {
      std::fclose(file_);
    }
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void put(const std::string& text) {
    if (file_ != nullptr && std::fwrite(text.data(), 1, text.size(), file_) != text.size()) {
      give_up();
    }
  }
  Status finish() {
    if (file_ != nullptr && std::fclose(std::exchange(file_, nullptr)) != 0) {
      error_ = errno;
      remove_file();
    } else if (error_ == 0 && !opened_) {
      error_ = open_error_;
    }
    if (error_ == 0) {
      return {};
    }
    return {StatusCode::kUnavailable,
            "cannot write the trace to " + path_ + ": " + std::strerror(error_) +
                "; training goes on without it"};
  }

 private:
  void give_up() {
    error_ = errno;
    std::fclose(std::exchange(file_, nullptr));
    remove_file();
  }
  /// Half a trace helps nobody; a device that was named by mistake stays.
  void remove_file() const {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path_, ignored)) {
      std::filesystem::remove(path_, ignored);
    }
  }

  std::string path_;
  std::FILE* file_;
  bool opened_ = file_ != nullptr;
  int open_error_ = opened_ ? 0 : errno;
  int error_ = 0;
};

}  // namespace

Status write_chrome_trace(const std::string& path,
                          Rank rank,
                          std::span<const Span> spans,
                          const std::function<std::string(std::uint32_t)>& parameter_name) {
  using Json = nlohmann::json;
  constexpr std::array<const char*, 4> kLanes{"training thread", "gradients", "wire", "steps"};
  Writer writer(path);
  const auto pid = index_of(rank);
  writer.put("[\n");
  writer.put(Json{{"ph", "M"},
                  {"name", "process_name"},
                  {"pid", pid},
                  {"args", {{"name", "rank " + std::to_string(pid)}}}}
                 .dump());
  for (std::size_t lane = 0; lane < kLanes.size(); ++lane) {
    writer.put(",\n" + Json{{"ph", "M"},
                            {"name", "thread_name"},
                            {"pid", pid},
                            {"tid", lane},
                            {"args", {{"name", kLanes[lane]}}}}
                           .dump());
  }
  for (const Span& span : spans) {
    Json event{{"name", label(span, parameter_name)},
               {"pid", pid},
               {"tid", static_cast<int>(span.lane)},
               {"ts", microseconds(span.begin)},
               {"args", {{"step", span.step}, {"id", span.id}}}};
    if (span.end > span.begin) {
      // Some overlap one another, which complete ("X") events of one thread must not.
      const bool overlaps = span.what == What::kChunk || span.what == What::kTaken;
      event["ph"] = overlaps ? "b" : "X";
      if (overlaps) {
        event["cat"] = to_string(span.what);
        event["id"] = std::to_string(span.step) + "." + std::to_string(span.id);
        writer.put(",\n" + event.dump());
        event["ph"] = "e";
        event["ts"] = microseconds(span.end);
      } else {
        event["dur"] = microseconds(span.end) - microseconds(span.begin);
      }
    } else {
      event["ph"] = "i";
      event["s"] = "t";
    }
    writer.put(",\n" + event.dump());
  }
  writer.put("\n]\n");
  return writer.finish();
}

}  // namespace stretto::trace

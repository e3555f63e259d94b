// SPDX-License-Identifier: Apache-2.0
#include "summary.hpp"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <numeric>

#include <unistd.h>

namespace fashion_mnist {
namespace {

constexpr std::size_t kLastSteps = 50;  // whose losses are averaged

template <typename Field>
std::vector<double> sorted(const std::vector<StepFigures>& steps, Field field) {
  std::vector<double> values;
  values.reserve(steps.size());
  for (const auto& step : steps) {
    values.push_back(field(step));
  }
  std::sort(values.begin(), values.end());
  return values;
}

template <typename Field>
double median(const std::vector<StepFigures>& steps, Field field) {
  const auto values = sorted(steps, field);
  return values.empty() ? 0 : values[values.size() / 2];
}

template <typename... Arguments>
std::string text_of(const char* format, Arguments... arguments) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), format, arguments...);
  return text.data();
}

}  // namespace

Summary summarise(const std::vector<StepFigures>& steps, std::size_t images_per_step) {
  Summary summary;
  if (steps.empty()) {
    return summary;
  }
  summary.steps = steps.size();
  const auto times = sorted(steps, [](const StepFigures& step) { return step.step_ms; });
  summary.step_ms = times[times.size() / 2];
  summary.min_ms = times.front();
  summary.max_ms = times.back();
  summary.compute_ms =
      median(steps, [](const StepFigures& step) { return step.step_ms - step.exposed_ms; });
  summary.exposed_ms = median(steps, [](const StepFigures& step) { return step.exposed_ms; });
  summary.hidden_ms = median(steps, [](const StepFigures& step) { return step.hidden_ms; });
  summary.bytes_per_step =
      median(steps, [](const StepFigures& step) { return double(step.payload_bytes); });
  summary.images_per_s = double(images_per_step) * 1e3 / summary.step_ms;
  summary.total_s = std::accumulate(times.begin(), times.end(), 0.0) / 1e3;
  const std::size_t last = std::min(kLastSteps, steps.size());
  for (std::size_t i = steps.size() - last; i < steps.size(); ++i) {
    summary.loss += steps[i].loss / double(last);
  }
  return summary;
}

std::string table_of(const std::vector<Summary>& summaries) {
  std::string table =
      "schedule     step ms  compute  exposed   hidden  images/s  MB/step  total s    loss  "
      "accuracy  test loss  weights\n";
  for (const auto& row : summaries) {
    // Alone, and in shared memory, nothing is sent.
    const std::string mb =
        row.bytes_per_step > 0 ? text_of("%.2f", row.bytes_per_step / 1e6) : std::string("-");
    table += text_of("%-11s %8.1f %8.1f %8.1f %8.1f %9.0f %8s %8.1f %7.3f  ",
                     row.schedule.c_str(),
                     row.step_ms,
                     row.compute_ms,
                     row.exposed_ms,
                     row.hidden_ms,
                     row.images_per_s,
                     mb.c_str(),
                     row.total_s,
                     row.loss);
    table += row.accuracy ? text_of("%7.2f%%", *row.accuracy * 100) : std::string("       -");
    table += row.test_loss ? text_of(" %10.4f", *row.test_loss) : std::string("          -");
    table += text_of("  %016" PRIx64 "\n", row.weight_hash);
  }
  return table;
}

Progress::Progress(Shown shown, std::size_t total, std::size_t images_per_step)
    : shown_(shown == Shown::kYes),
      terminal_(::isatty(STDERR_FILENO) != 0),
      total_(total),
      images_per_step_(images_per_step) {}

void Progress::update(std::size_t done, const StepFigures& step) {
  if (!shown_ || total_ == 0) {
    return;
  }
  const double keep = drawn_ ? 0.95 : 0.0;  // the first value stands for itself
  drawn_ = true;
  const auto mix = [keep](double& old, double now) { old = keep * old + (1 - keep) * now; };
  mix(smooth_.step_ms, step.step_ms);
  mix(smooth_.exposed_ms, step.exposed_ms);
  mix(smooth_.hidden_ms, step.hidden_ms);
  mix(smooth_.loss, step.loss);
  if (done < next_line_ && done != total_) {
    return;
  }
  // A terminal shows every per mille, a file every tenth.
  next_line_ = done + std::max<std::size_t>(1, total_ / (terminal_ ? 1000 : 10));
  const auto figures =
      text_of("step %zu/%zu  loss %.3f  %.0f images/s  hidden %.1f ms  exposed %.1f ms",
              done,
              total_,
              smooth_.loss,
              double(images_per_step_) * 1e3 / smooth_.step_ms,
              smooth_.hidden_ms,
              smooth_.exposed_ms);
  if (!terminal_) {
    std::fprintf(stderr, "%s\n", figures.c_str());
    return;
  }
  constexpr std::size_t kWidth = 24;
  const std::size_t filled = kWidth * done / total_;
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  std::fprintf(stderr, "\r[%s] %s\033[K", bar.c_str(), figures.c_str());
  std::fflush(stderr);
}

void Progress::end() {
  if (shown_ && terminal_ && drawn_) {
    std::fputc('\n', stderr);
  }
}

}  // namespace fashion_mnist

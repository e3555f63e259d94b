// SPDX-License-Identifier: Apache-2.0
#include "stretto/engine.hpp"

#include "base/fault_point.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "engine/agreement.hpp"
#include "engine/codec_choice.hpp"
#include "engine/engine_impl.hpp"
#include "engine/footer.hpp"
#include "engine/residual_files.hpp"
#include "registry/registry.hpp"
#include "schedule/plan.hpp"
#include "trace/chrome_writer.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <thread>

#include <nlohmann/json.hpp>

namespace stretto {

Result<std::unique_ptr<Engine>> Engine::create(std::shared_ptr<Group> group,
                                               const EngineOptions& options) {
  STRETTO_TRY(options.validate());
  if (group == nullptr) {
    return fail(StatusCode::kInvalidArgument, "an engine needs a group; call Group::join first");
  }
  return std::make_unique<engine::EngineImpl>(std::move(group), options);
}

namespace engine {
namespace {

constexpr std::size_t kTraceSpans = std::size_t{1} << 18;
constexpr std::uint64_t kPassBits = 16;
constexpr auto kGrace = std::chrono::seconds(3);  // for the progress thread to say what was missing

double milliseconds(TimePoint::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

EngineImpl::~EngineImpl() {
  progress_.reset();
  write_trace();
}

Result<ParameterId> EngineImpl::add_parameter(ParameterSpec spec) {
  if (committed_) {
    return fail(StatusCode::kInvalidArgument,
                "parameter " + spec.name + " came after commit; add all before");
  }
  if (spec.name.empty()) {
    return fail(StatusCode::kInvalidArgument,
                "a parameter needs a name; errors would name nothing");
  }
  for (const ParameterSpec& other : specs_) {
    if (other.name == spec.name) {
      return fail(StatusCode::kInvalidArgument,
                  "there are two parameters with the name " + spec.name);
    }
  }
  for (const std::int64_t length : spec.shape) {
    if (length < 0) {
      return fail(StatusCode::kInvalidArgument,
                  "parameter " + spec.name + " has the shape " + to_string(spec.shape));
    }
  }
  specs_.push_back(std::move(spec));
  ++users_;
  return ParameterId{static_cast<std::uint32_t>(users_ - 1)};
}

Status EngineImpl::commit() {
  if (committed_) {
    return {StatusCode::kInvalidArgument, "commit was called twice"};
  }
  specs_.push_back(
      {"stretto.footer",
       {static_cast<std::int64_t>(FooterCode(group_->size()).floats(Stepper::kFlags + users_))},
       DType::kFloat32,
       Rule::kRankMean});
  Status agreed = agree();
  if (agreed.is_ok()) {
    agreed = build();
  }
  if (!agreed.is_ok()) {
    specs_.pop_back();
    group_->control().abort(agreed);
    return agreed;
  }
  committed_ = true;
  progress_->start();
  return {};
}

Status EngineImpl::agree() {
  STRETTO_TRY_ASSIGN(coding_, choose_codecs(specs_, options_));
  layout_ = schedule::make_layout(specs_, users_, coding_);
  options_.chunk_bytes = options_.chunk_bytes_for(layout_.arena_bytes);
  schedule::make_groups(
      layout_, specs_, coding_, group_->size(), options_.chunk_bytes / group_->size());
  return agree_on_parameters(group_->control(),
                             specs_,
                             options_,
                             codec_versions(coding_),
                             Deadline::after(group_->options().timeout));
}

Status EngineImpl::build() {
  STRETTO_TRY_ASSIGN(data_.transport, registry::make_transport(*group_, options_));
  fault_point("transport.connected", index_of(group_->rank()));
  STRETTO_TRY_ASSIGN(data_.device, registry::make_device(options_));
  if (has_codecs()) {
    STRETTO_TRY_ASSIGN(data_.coding_device, registry::make_coding_device());
    STRETTO_TRY_ASSIGN(data_.feedback,
                       ErrorFeedback::make(layout_, coding_, *data_.coding_device, group_->rank()));
  }
  STRETTO_TRY_ASSIGN(
      data_.exchange,
      registry::make_exchange(
          *group_, *data_.transport, *data_.device, data_.coding_device.get(), options_));
  STRETTO_TRY_ASSIGN(data_.contributions,
                     data_.exchange->allocate_arena(*data_.device, layout_.arena_bytes));
  STRETTO_TRY_ASSIGN(data_.results,
                     data_.exchange->allocate_arena(*data_.device, layout_.arena_bytes));
  board_ = std::make_unique<Board>(specs_.size());
  fired_ = std::vector<std::atomic<std::uint64_t>>(specs_.size());
  if (!options_.trace_file.empty()) {
    progress_trace_ = trace::Recorder(kTraceSpans);
    training_trace_ = trace::Recorder(kTraceSpans / 16);
  }
  if (!options_.metrics_file.empty()) {
    metrics_.reset(std::fopen(options_.metrics_file.c_str(), "a"));
    if (metrics_ == nullptr) {
      log(LogLevel::kWarning,
          "cannot write metrics to " + options_.metrics_file + ": " + std::strerror(errno) +
              "; training goes on without them");
    }
  }
  StepperParts parts;
  parts.parameters = specs_;
  parts.layout = &layout_;
  parts.coding = &coding_;
  parts.feedback = data_.feedback.get();
  parts.exchange = data_.exchange.get();
  parts.transport = data_.transport.get();
  parts.device = data_.device.get();
  parts.contributions = data_.contributions->data();
  parts.results = data_.results->data();
  parts.board = board_.get();
  parts.recorder = &progress_trace_;
  parts.options = options_;
  parts.rank = group_->rank();
  parts.ranks = group_->size();
  STRETTO_TRY_ASSIGN(auto stepper, Stepper::make(parts));
  STRETTO_TRY(
      stepper->set_plan(schedule::make_plan(layout_, {}, options_.chunk_bytes), {}, kEpoch));
  ProgressThread::Parts thread;
  thread.stepper = std::move(stepper);
  thread.exchange = data_.exchange.get();
  thread.control = &group_->control();
  thread.board = board_.get();
  // Each parameter once per backward pass, and next_backward waits for room for another.
  thread.queue_capacity = 4 * specs_.size() + 64;
  thread.may_spin = 2 * group_->local_size() < std::thread::hardware_concurrency();
  STRETTO_TRY_ASSIGN(progress_, ProgressThread::make(std::move(thread)));
  return {};
}

std::byte* EngineImpl::place(const spi::Buffer& arena, ParameterId id) const noexcept {
  const schedule::Layout::Place& place = layout_.places[index_of(id)];
  const schedule::Layout::Bucket& bucket = layout_.buckets[index_of(place.bucket)];
  return arena.data() + bucket.first_byte + place.first_element * size_of(bucket.dtype);
}

std::byte* EngineImpl::gradient_slot(ParameterId id) noexcept {
  return place(*data_.contributions, id);
}

std::byte* EngineImpl::result(ParameterId id) noexcept {
  return place(*data_.results, id);
}

Status EngineImpl::check_usable(const char* call) const {
  if (!committed_) {
    return {StatusCode::kInvalidArgument, std::string(call) + " was called before commit"};
  }
  if (closed_) {
    return {StatusCode::kInvalidArgument, std::string(call) + " was called after shutdown"};
  }
  if (board_->failed.load(std::memory_order_acquire)) {
    return board_->failure();
  }
  return {};
}

Status EngineImpl::begin_step(const StepOptions& options) {
  return begin(options, false);
}

Status EngineImpl::begin(const StepOptions& options, bool broadcast) {
  STRETTO_TRY(check_usable("begin_step"));
  if (in_step_) {
    return {StatusCode::kInvalidArgument,
            "begin_step was called in step " + std::to_string(step_) + "; call finish_step first"};
  }
  if (options.backward_passes == 0 || options.backward_passes >= (1U << kPassBits)) {
    return {StatusCode::kInvalidArgument, "backward_passes must be from 1 to 65535"};
  }
  const TimePoint now = Clock::now();
  waits_.clear();
  step_began_ = step_ == 0 || broadcast ? now : last_end_;
  const bool changes = has_codecs() && plan_is_coded_ == broadcast;
  if (replan_ || changes) {
    STRETTO_TRY(replan_ ? replan() : Status());
    STRETTO_TRY(changes ? change_plan(!broadcast) : Status());
    const TimePoint end = Clock::now();
    waits_.add({now, end});
    training_trace_.add({trace::What::kReplan, trace::Lane::kTraining, 0, step_ + 1, now, end});
  }
  if (has_codecs() && !broadcast && data_.feedback->needs_total()) {
    STRETTO_TRY(agree_on_samples(options.samples));
  }
  ++step_;
  step_options_ = options;
  pass_.store(0, std::memory_order_relaxed);
  in_step_ = true;
  Command command;
  command.kind = Command::Kind::kBegin;
  command.step = step_;
  command.samples = options.samples;
  command.learning_rate = options.learning_rate;
  command.broadcast = broadcast;
  command.ended = options.ended;
  command.when = now;
  return progress_->push(command);
}

Status EngineImpl::next_backward() {
  STRETTO_TRY(check_usable("next_backward"));
  const std::uint32_t pass = pass_.load(std::memory_order_relaxed) + 1;
  if (!in_step_ || pass >= step_options_.backward_passes) {
    return {StatusCode::kInvalidArgument,
            "step " + std::to_string(step_) + " has " +
                std::to_string(step_options_.backward_passes) +
                " backward passes; there is no next"};
  }
  // A gradient's event may be late and everything behind it waits in the queue.
  const auto has_room = [&] {
    return progress_->has_room(users_ + 2);
  };  // and a begin and a finish
  if (!has_room()) {
    const TimePoint begin = Clock::now();
    const Status waited = wait_until(has_room);
    waits_.add({begin, Clock::now()});
    STRETTO_TRY(waited);
  }
  pass_.store(pass, std::memory_order_release);
  return {};
}

Status EngineImpl::ready(ParameterId id, const std::byte* gradient, spi::Event* produced) {
  if (board_ == nullptr || board_->failed.load(std::memory_order_acquire) || !in_step_) {
    STRETTO_TRY(check_usable("ready"));
    return {StatusCode::kInvalidArgument,
            "ready was called outside of a step; call begin_step first"};
  }
  if (index_of(id) >= users_) {
    return {StatusCode::kInvalidArgument, "there is no parameter " + std::to_string(index_of(id))};
  }
  const std::uint32_t pass = pass_.load(std::memory_order_acquire);
  const std::uint64_t stamp = (step_ << kPassBits) + pass + 1;
  if (fired_[index_of(id)].exchange(stamp, std::memory_order_relaxed) == stamp) {
    const Status twice(
        StatusCode::kInvalidArgument,
        "step " + std::to_string(step_) + ": the gradient of " + specs_[index_of(id)].name +
            " was ready a second time after it was sent; if a step has several backward "
            "passes, say so in begin_step");
    board_->fail(twice);
    group_->control().abort(twice);
    return failure_at_rest();
  }
  Command command;
  command.kind = Command::Kind::kReady;
  command.last_pass = pass + 1 == step_options_.backward_passes;
  command.parameter = static_cast<std::uint32_t>(index_of(id));
  command.gradient = gradient;
  command.produced = produced;
  command.when = Clock::now();
  return progress_->push(command);
}

Status EngineImpl::failure_at_rest() {
  if (board_->failed.load(std::memory_order_acquire)) {
    static_cast<void>(progress_->push(Command{}));  // it may sleep
    board_->changed.wait([&] { return board_->quiet.load(std::memory_order_acquire); },
                         Deadline::after(kGrace));
  }
  return board_->failure();
}

Status EngineImpl::wait_until(const std::function<bool()>& condition) {
  const auto over = [&] { return condition() || board_->failed.load(std::memory_order_acquire); };
  if (!board_->changed.wait(over, Deadline::after(options_.timeout))) {
    progress_->give_up();
    board_->changed.wait(over, Deadline::after(kGrace));
  }
  if (condition()) {
    return {};
  }
  const Status failure = failure_at_rest();
  return failure.is_ok() ? Status(StatusCode::kDeadlineExceeded,
                                  "step " + std::to_string(step_) + " did not end in " +
                                      std::to_string(options_.timeout.count()) + " ms")
                         : failure;
}

bool EngineImpl::taken(ParameterId id) const noexcept {
  return committed_ && index_of(id) < users_ &&
         board_->taken_step[index_of(id)].load(std::memory_order_acquire) == step_;
}

Status EngineImpl::wait_gradient(ParameterId id) {
  STRETTO_TRY(check_usable("wait_gradient"));
  if (index_of(id) >= users_) {
    return {StatusCode::kInvalidArgument, "there is no parameter " + std::to_string(index_of(id))};
  }
  const TimePoint begin = Clock::now();
  const Status waited = wait_until(
      [&] { return board_->home_step[index_of(id)].load(std::memory_order_acquire) >= step_; });
  waits_.add({begin, Clock::now()});
  return waited;
}

Result<StepReport> EngineImpl::finish_step() {
  STRETTO_TRY(check_usable("finish_step"));
  if (!in_step_) {
    return fail(StatusCode::kInvalidArgument, "finish_step was called outside of a step");
  }
  const TimePoint begin = Clock::now();
  Command command;
  command.kind = Command::Kind::kFinish;
  command.when = begin;
  STRETTO_TRY(progress_->push(command));
  STRETTO_TRY(
      wait_until([&] { return board_->done_step.load(std::memory_order_acquire) == step_; }));
  const TimePoint end = Clock::now();
  waits_.add({begin, end});
  training_trace_.add({trace::What::kWait, trace::Lane::kTraining, 0, step_, begin, end});
  in_step_ = false;
  replan_ = board_->outcome.replan;
  const StepReport report = account(end);
  fault_point("step.between", index_of(group_->rank()));
  write_metrics(report);
  return report;
}

StepReport EngineImpl::account(TimePoint end) {
  const StepOutcome& outcome = board_->outcome;
  StepReport report;
  report.step = step_;
  report.step_ms = milliseconds(end - step_began_);
  report.exposed_ms = waits_.total_ms();
  report.compute_ms = report.step_ms - report.exposed_ms;
  report.busy_ms = outcome.busy.total_ms();
  report.hidden_ms = report.busy_ms - Intervals::overlap_ms(outcome.busy, waits_);
  report.payload_bytes = outcome.payload_bytes;
  report.wire_bytes = outcome.wire_bytes;
  report.cpu_s = outcome.cpu_s;
  report.samples = outcome.samples;
  report.non_finite = outcome.non_finite;
  report.refused = outcome.refused;
  report.residual_ratio =
      outcome.value_squares > 0 ? std::sqrt(outcome.left_squares / outcome.value_squares) : 0;
  report.unused = outcome.unused;
  report.chunks = outcome.chunks;
  report.last_rank = outcome.last_rank;
  report.all_ended = outcome.all_ended;
  last_end_ = end;
  return report;
}

void EngineImpl::write_metrics(const StepReport& report) {
  if (metrics_ == nullptr) {
    return;
  }
  nlohmann::json line{{"step", report.step},
                      {"rank", index_of(group_->rank())},
                      {"compute_ms", report.compute_ms},
                      {"exposed_ms", report.exposed_ms},
                      {"hidden_ms", report.hidden_ms},
                      {"wire_bytes", report.wire_bytes},
                      {"cpu_s", report.cpu_s},
                      {"residual_ratio", report.residual_ratio}};
  line["last_rank"] =
      report.last_rank ? nlohmann::json(index_of(*report.last_rank)) : nlohmann::json();
  const std::string text = line.dump() + "\n";
  if (std::fwrite(text.data(), 1, text.size(), metrics_.get()) != text.size() ||
      std::fflush(metrics_.get()) != 0) {
    log(LogLevel::kWarning,
        "cannot write metrics to " + options_.metrics_file + ": " + std::strerror(errno) +
            "; training goes on without them");
    metrics_.reset();
  }
}

bool EngineImpl::used_by_any(ParameterId id) const noexcept {
  const schedule::Layout::Place& footer = layout_.places[users_];
  const schedule::Layout::Bucket& bucket = layout_.buckets[index_of(footer.bucket)];
  const auto* values = reinterpret_cast<const float*>(data_.results->data() + bucket.first_byte) +
                       footer.first_element;
  return FooterCode(group_->size())
             .count({values, footer.element_count}, Stepper::kFlags + index_of(id)) > 0;
}

std::string_view EngineImpl::codec(ParameterId id) const {
  const bool known = index_of(id) < coding_.of_parameter.size();
  const auto& codec = coding_.codecs[known ? coding_.of_parameter[index_of(id)] : 0];
  return codec == nullptr ? std::string_view("none") : std::string_view(codec->traits().name);
}

bool EngineImpl::codec_owns_momentum() const noexcept {
  return std::any_of(coding_.codecs.begin(), coding_.codecs.end(), [](const auto& codec) {
    return codec != nullptr && codec->traits().owns_momentum;
  });
}

std::string EngineImpl::describe() const {
  if (data_.exchange == nullptr) {
    return "not committed";
  }
  const spi::ExchangeTraits& traits = data_.exchange->traits();
  const bool native = traits.order == spi::SumOrder::kNative;
  return traits.name + " over " + data_.transport->traits().name + (native ? ", order native" : "");
}

Status EngineImpl::shutdown() {
  if (!committed_ || closed_) {
    return {};
  }
  STRETTO_TRY(check_usable("shutdown"));
  if (in_step_) {
    return {StatusCode::kInvalidArgument,
            "shutdown was called within a step; call finish_step first"};
  }
  closed_ = true;
  // Nobody closes before all have ended, so that no one takes an orderly end for a loss.
  fault_point("engine.shutdown", index_of(group_->rank()));
  progress_->expect_end();
  STRETTO_TRY(group_->control().all_gather("the end", {}, Deadline::after(options_.timeout)));
  fault_point("engine.close", index_of(group_->rank()));
  progress_->stop();
  return data_.transport->close(Deadline::after(std::chrono::seconds(5)));
}

void EngineImpl::write_trace() {
  if (options_.trace_file.empty() || !committed_) {
    return;
  }
  auto spans = progress_trace_.spans();
  const auto waits = training_trace_.spans();
  spans.insert(spans.end(), waits.begin(), waits.end());
  const std::size_t rank = index_of(group_->rank());
  const std::string path =
      group_->size() == 1 ? options_.trace_file : options_.trace_file + "." + std::to_string(rank);
  const Status written = trace::write_chrome_trace(
      path, group_->rank(), spans, [this](std::uint32_t id) { return specs_[id].name; });
  if (!written.is_ok()) {
    log(LogLevel::kWarning, written.message());
  }
}

}  // namespace engine
}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernels.hpp"

#include "base/log.hpp"
#include "kernels/coding.hpp"
#include "kernels/coding_formats.hpp"
#include "kernels/float_environment.hpp"
#include "kernels/table.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include <strings.h>

namespace stretto::kernels {
namespace {

const std::vector<const Table*>& all_tables() {
  static const std::vector<const Table*> kTables = [] {
    auto tables = simd_tables();
    tables.push_back(&scalar_table());
    return tables;
  }();
  return kTables;
}

const Table* find_table(std::string_view name) {
  for (const Table* table : all_tables()) {
    const std::string_view candidate = table->name;
    if (candidate.size() == name.size() &&
        ::strncasecmp(candidate.data(), name.data(), name.size()) == 0) {
      return table;
    }
  }
  return nullptr;
}

Status no_such_target(std::string_view name) {
  std::string text = "no kernels for '" + std::string(name) + "' on this processor; there are";
  for (const Table* table : all_tables()) {
    text += std::string(" ") + table->name;
  }
  return {StatusCode::kUnsupported, text};
}

const Table* first_choice() {
  const char* wanted = std::getenv("STRETTO_TARGET");
  if (wanted == nullptr || *wanted == '\0') {
    return all_tables().front();
  }
  if (const Table* table = find_table(wanted)) {
    return table;
  }
  log(LogLevel::kWarning, "STRETTO_TARGET: " + std::string(no_such_target(wanted).message()));
  return all_tables().front();
}

std::atomic<const Table*>& active() {
  static std::atomic<const Table*> choice{first_choice()};
  return choice;
}

/// Relaxed: tables are constants made before any thread can ask for them.
const Table& table() noexcept {
  return *active().load(std::memory_order_relaxed);
}

}  // namespace

const Table& active_table() noexcept {
  return table();
}

void zero(DType dtype, std::byte* destination, std::size_t n) noexcept {
  if (n > 0) {
    std::memset(destination, 0, n * size_of(dtype));
  }
}

void copy(DType dtype, std::byte* destination, const std::byte* source, std::size_t n) noexcept {
  if (n > 0) {
    std::memmove(destination, source, n * size_of(dtype));
  }
}

void cast(
    DType to, std::byte* destination, DType from, const std::byte* source, std::size_t n) noexcept {
  if (to == from) {
    return copy(to, destination, source, n);
  }
  const FloatEnvironment environment;
  table().cast(to, destination, from, source, n);
}

void accumulate(DType dtype,
                std::byte* destination,
                const std::byte* source,
                std::size_t n) noexcept {
  const FloatEnvironment environment;
  table().accumulate(dtype, destination, source, n);
}

std::size_t count_non_finite(DType dtype, const std::byte* source, std::size_t n) noexcept {
  return table().count_non_finite(dtype, source, n);
}

std::size_t wire_bytes(WireFormat format, std::size_t n) noexcept {
  return length_of_wire(format, n);
}

EncodeFacts encode(WireFormat format, const EncodeTask& task) noexcept {
  const FloatEnvironment environment;
  return table().coding->encode(format, task);
}

void absorb(
    WireFormat format, const std::byte* wire, std::size_t n, float weight, float* sum) noexcept {
  const FloatEnvironment environment;
  table().coding->absorb(format, wire, n, weight, sum);
}

void decode(WireFormat format,
            const std::byte* wire,
            std::size_t n,
            float scale,
            DType dtype,
            std::byte* result) noexcept {
  const FloatEnvironment environment;
  table().coding->decode(format, wire, n, scale, dtype, result);
}

Status validate(const spi::Operation& operation) {
  if (operation.kind == spi::Operation::Kind::kCall && operation.call == nullptr) {
    return {StatusCode::kInvalidArgument, "a call names no function"};
  }
  if (operation.kind != spi::Operation::Kind::kWeightedSum) {
    return {};
  }
  if (operation.source_count > spi::kMaxSources) {
    return {StatusCode::kInvalidArgument,
            "a weighted sum names " + std::to_string(operation.source_count) +
                " sources; add at most " + std::to_string(spi::kMaxSources) + " at a time"};
  }
  const bool from_scratch = operation.accumulator == nullptr || operation.begins;
  if (from_scratch && operation.source_count == 0) {
    return {StatusCode::kInvalidArgument,
            "a weighted sum begins without a source; give one, or zero the destination"};
  }
  if (!operation.finishes && operation.accumulator == nullptr && operation.element_count > 0) {
    return {StatusCode::kInvalidArgument,
            "a weighted sum neither finishes nor has an accumulator; give it one of the two"};
  }
  return {};
}

void run(const spi::Operation& operation) noexcept {
  const std::size_t n = operation.element_count;
  switch (operation.kind) {
    case spi::Operation::Kind::kZero:
      return zero(operation.dtype, operation.destination, n);
    case spi::Operation::Kind::kCopy:
      return copy(operation.dtype, operation.destination, operation.source[0], n);
    case spi::Operation::Kind::kAccumulate:
      return accumulate(operation.dtype, operation.destination, operation.source[0], n);
    case spi::Operation::Kind::kWeightedSum: {
      const FloatEnvironment environment;
      return table().weighted_sum(operation);
    }
    case spi::Operation::Kind::kCall:
      return operation.call(operation.argument);
  }
}

spi::Operation slice(const spi::Operation& operation,
                     std::size_t first,
                     std::size_t count) noexcept {
  spi::Operation part = operation;
  const std::size_t offset = first * size_of(operation.dtype);
  part.element_count = count;
  if (part.destination != nullptr) {
    part.destination += offset;
  }
  if (part.accumulator != nullptr) {
    part.accumulator += first;
  }
  for (auto& source : part.source) {
    if (source != nullptr) {
      source += offset;
    }
  }
  return part;
}

std::string_view target_name() noexcept {
  return table().name;
}

std::vector<std::string_view> available_targets() {
  std::vector<std::string_view> names;
  for (const Table* candidate : all_tables()) {
    names.emplace_back(candidate->name);
  }
  return names;
}

Status select_target(std::string_view name) {
  const Table* chosen = find_table(name);
  if (chosen == nullptr) {
    return no_such_target(name);
  }
  active().store(chosen, std::memory_order_relaxed);
  return {};
}

}  // namespace stretto::kernels

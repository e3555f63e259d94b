// SPDX-License-Identifier: Apache-2.0
#include "engine/residual_files.hpp"

#include "base/hash.hpp"
#include "checkpoint/manifest.hpp"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include <unistd.h>

namespace stretto::engine {
namespace {

using checkpoint::ElementType;

constexpr const char* kSteps = "residuals.steps";
constexpr const char* kSamples = "residuals.samples";
constexpr const char* kTotal = "residuals.total_samples";
constexpr const char* kRate = "residuals.learning_rate";
constexpr const char* kShare = "residuals.is_share";

Shape shape_of(std::size_t floats) {
  return {static_cast<std::int64_t>(floats)};
}

std::span<const std::byte> bytes_of(const float* values, std::size_t count) {
  return {reinterpret_cast<const std::byte*>(values), count * sizeof(float)};
}

std::uint64_t number_of(const checkpoint::Metadata& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? 0 : std::strtoull(found->second.c_str(), nullptr, 10);
}

/// As text that gives the same bits again.
std::string text_of(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%a", value);
  return text;
}

bool has(const checkpoint::SafetensorsFile& file, const std::string& name) {
  const auto& tensors = file.header().tensors;
  return std::any_of(
      tensors.begin(), tensors.end(), [&](const auto& entry) { return entry.name == name; });
}

Status read_floats(const checkpoint::SafetensorsFile& file,
                   const std::string& name,
                   std::vector<float>& values) {
  STRETTO_TRY_ASSIGN(const auto entry, file.find(name, ElementType::kF32, shape_of(values.size())));
  return file.read(entry, std::as_writable_bytes(std::span(values)));
}

}  // namespace

std::vector<ResidualFiles::Segment> ResidualFiles::segments(std::size_t half) const {
  const schedule::Layout& layout = feedback_.layout_;
  std::vector<Segment> list;
  std::vector<std::size_t> done(parameters_.size(), 0);  // elements of each parameter so far
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const spi::ChunkDescription chunk = feedback_.describe(g);
    const ErrorFeedback::Place& place = feedback_.places_[g];
    std::size_t state_at = 0;
    for (std::size_t s = 0; s < chunk.segments.size(); ++s) {
      const spi::CodedSegment& entry = chunk.segments[s];
      const std::size_t parameter =
          index_of(layout.segment_parameters[layout.groups[g].first_segment + s]);
      Segment segment;
      segment.suffix = std::string(entry.name) + "." + std::to_string(done[parameter]);
      segment.elements = entry.segment.element_count;
      segment.state_floats = chunk.codec->state_floats(entry.segment);
      segment.state_adds_up = chunk.codec->traits().owns_momentum;
      const auto at = [&](std::size_t first, std::size_t offset) {
        float* floats = feedback_.floats(half, first);
        return floats == nullptr ? nullptr : floats + offset;
      };
      segment.residual = at(place.residual, entry.first_element);
      segment.owned = at(place.owned, entry.first_element);
      segment.state = segment.state_floats == 0 ? nullptr : at(place.state, state_at);
      list.push_back(std::move(segment));
      done[parameter] += entry.segment.element_count;
      state_at += spi::CodedMemory::padded(chunk.codec->state_floats(entry.segment));
    }
  }
  return list;
}

/// Of what the files are for: the segments of all parameters, and their codecs.
std::uint64_t ResidualFiles::plan_hash() const {
  std::uint64_t hash = 0;
  for (std::size_t g = 0; g < feedback_.layout_.groups.size(); ++g) {
    const spi::ChunkDescription chunk = feedback_.describe(g);
    for (const spi::CodedSegment& entry : chunk.segments) {
      hash = hash_text(entry.name, hash);
      hash = hash_text(std::to_string(entry.segment.element_count), hash);
      hash = hash_text(chunk.codec->traits().name, hash);
    }
  }
  return hash;
}

std::string ResidualFiles::path_of(const std::string& prefix,
                                   std::size_t rank,
                                   std::size_t ranks) const {
  return prefix + ".rank-" + std::to_string(rank) + "-of-" + std::to_string(ranks);
}

Status ResidualFiles::save(const std::string& prefix, std::uint64_t step) const {
  const ErrorFeedback::Books& books = feedback_.books_;
  std::vector<checkpoint::TensorToWrite> tensors;
  const auto add = [&](const std::string& name, const float* values, std::size_t count) {
    if (values != nullptr) {
      tensors.push_back({name, ElementType::kF32, shape_of(count), bytes_of(values, count)});
    }
  };
  for (const Segment& segment : segments(books.half)) {
    add("residual." + segment.suffix, segment.residual, segment.elements);
    add("owner." + segment.suffix, segment.owned, segment.elements);
    add("state." + segment.suffix, segment.state, segment.state_floats);
  }
  checkpoint::Metadata metadata{{kSteps, std::to_string(books.steps)},
                                {kSamples, std::to_string(books.samples)},
                                {kTotal, std::to_string(books.total)},
                                {kRate, text_of(books.learning_rate)},
                                {kShare, books.is_share ? "1" : "0"}};
  checkpoint::put_manifest({.step = step, .world_size = ranks_, .plan_hash = plan_hash()},
                           metadata);
  return checkpoint::write_safetensors(
      path_of(prefix, index_of(feedback_.rank_), ranks_), tensors, metadata);
}

Result<ResidualFiles::Source> ResidualFiles::open(const std::string& path,
                                                  std::uint64_t step,
                                                  std::size_t rank) const {
  STRETTO_TRY_ASSIGN(auto file, checkpoint::SafetensorsFile::open(path));
  const checkpoint::Metadata& metadata = file.header().metadata;
  STRETTO_TRY_ASSIGN(const auto manifest, checkpoint::manifest_of(metadata, path));
  if (manifest.plan_hash != plan_hash()) {
    return fail(StatusCode::kInvalidArgument,
                "'" + path +
                    "' holds residuals of another model or other codecs; start with the options "
                    "that saved it, or without residuals");
  }
  if (manifest.step != step) {
    return fail(StatusCode::kInvalidArgument,
                "'" + path + "' holds the residuals of step " + std::to_string(manifest.step) +
                    " and not of step " + std::to_string(step) +
                    "; take the checkpoint that was saved with it");
  }
  ErrorFeedback::Books books;
  books.steps = number_of(metadata, kSteps);
  books.samples = number_of(metadata, kSamples);
  books.total = number_of(metadata, kTotal);
  books.is_share = number_of(metadata, kShare) != 0;
  const auto rate = metadata.find(kRate);
  books.learning_rate = rate == metadata.end() ? 0 : std::strtod(rate->second.c_str(), nullptr);
  return Source{std::move(file), rank, books};
}

Result<std::vector<ResidualFiles::Source>> ResidualFiles::open_all(
    const std::string& prefix,
    std::uint64_t step,
    std::size_t world_size,
    RestoredResiduals& report) const {
  std::vector<Source> sources;
  for (std::size_t rank = 0; rank < world_size; ++rank) {
    const std::string path = path_of(prefix, rank, world_size);
    if (::access(path.c_str(), F_OK) != 0) {
      report.missing.push_back(Rank{static_cast<std::uint32_t>(rank)});
      continue;
    }
    STRETTO_TRY_ASSIGN(auto source, open(path, step, rank));
    sources.push_back(std::move(source));
  }
  if (sources.empty()) {
    return fail(StatusCode::kUnavailable,
                "there are no residuals of " + std::to_string(world_size) + " ranks at '" +
                    path_of(prefix, 0, world_size) +
                    "' and its neighbours; give the prefix that they were saved under");
  }
  return sources;
}

/// values = what becomes this rank's: its own, or its share of those of other ranks.
Status ResidualFiles::read_sum(const std::vector<Source>& sources,
                               bool same_ranks,
                               const std::string& name,
                               std::vector<float>& values) const {
  const std::size_t own = index_of(feedback_.rank_);
  std::vector<float> one(values.size());
  for (const Source& source : sources) {
    if (source.rank % ranks_ != own) {
      continue;
    }
    STRETTO_TRY(read_floats(source.file, name, one));
    double scale = 1;
    if (!same_ranks && !source.books.is_share && source.books.total > 0) {
      scale = static_cast<double>(source.books.samples) / static_cast<double>(source.books.total);
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] += static_cast<float>(scale * static_cast<double>(one[i]));
    }
  }
  return {};
}

Result<std::vector<ResidualFiles::Taken>> ResidualFiles::read(const std::vector<Source>& sources,
                                                              bool same_ranks,
                                                              RestoredResiduals& report) const {
  std::vector<Taken> taken;
  for (const Segment& segment : segments(0)) {
    if (segment.residual != nullptr) {
      std::vector<float> values(segment.elements, 0.0F);
      STRETTO_TRY(read_sum(sources, same_ranks, "residual." + segment.suffix, values));
      taken.push_back({segment.residual, std::move(values)});
    }
    if (segment.owned != nullptr) {
      const std::string name = "owner." + segment.suffix;
      std::vector<float> values(segment.elements, 0.0F);
      const auto found = std::find_if(sources.begin(), sources.end(), [&](const Source& source) {
        return has(source.file, name);
      });
      if (found != sources.end()) {
        STRETTO_TRY(read_floats(found->file, name, values));
      } else {
        ++report.lost_segments;
      }
      taken.push_back({segment.owned, std::move(values)});
    }
    if (segment.state != nullptr) {
      const std::string name = "state." + segment.suffix;
      std::vector<float> values(segment.state_floats, 0.0F);
      if (same_ranks || segment.state_adds_up) {
        STRETTO_TRY(read_sum(sources, same_ranks, name, values));
        for (float& value : values) {
          value *= same_ranks ? 1.0F : static_cast<float>(ranks_);
        }
      }
      // What is the same on all ranks may come from any.
      const bool has_own = std::any_of(sources.begin(), sources.end(), [&](const Source& source) {
        return source.rank == index_of(feedback_.rank_);
      });
      if (!segment.state_adds_up && !(same_ranks && has_own)) {
        STRETTO_TRY(read_floats(sources.front().file, name, values));
      }
      taken.push_back({segment.state, std::move(values)});
    }
  }
  return taken;
}

Result<RestoredResiduals> ResidualFiles::load(const std::string& prefix,
                                              std::uint64_t step,
                                              std::size_t world_size) {
  RestoredResiduals report;
  STRETTO_TRY_ASSIGN(const auto sources, open_all(prefix, step, world_size, report));
  const bool same_ranks = world_size == ranks_;
  STRETTO_TRY_ASSIGN(const auto taken, read(sources, same_ranks, report));
  for (const Taken& one : taken) {
    std::copy(one.values.begin(), one.values.end(), one.to);
  }
  ErrorFeedback::Books books;
  books.is_share = !same_ranks || sources.front().books.is_share;  // the same on all ranks
  books.learning_rate = sources.front().books.learning_rate;
  books.steps = sources.front().books.steps;
  for (const Source& source : sources) {
    if (same_ranks && source.rank == index_of(feedback_.rank_)) {
      books = source.books;
    }
  }
  books.half = 0;
  feedback_.books_ = books;
  feedback_.has_before_ = false;
  return report;
}

}  // namespace stretto::engine

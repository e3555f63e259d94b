// SPDX-License-Identifier: Apache-2.0
#include "schedule/plan.hpp"

#include "base/byte_order.hpp"
#include "base/hash.hpp"

#include <algorithm>
#include <cstdlib>

namespace stretto::schedule {
namespace {

// Neighbours in memory that appear this far apart, as a share of all parameters, part company.
constexpr double kFarApart = 0.25;

std::uint32_t position(std::span<const std::uint32_t> ready_order, ParameterId id) {
  return ready_order.empty() ? static_cast<std::uint32_t>(index_of(id)) : ready_order[index_of(id)];
}

bool far_apart(std::span<const std::uint32_t> ready_order, ParameterId before, ParameterId after) {
  if (ready_order.empty()) {
    return false;
  }
  const double distance = std::abs(static_cast<double>(position(ready_order, after)) -
                                   static_cast<double>(position(ready_order, before)));
  return distance > std::max(2.0, kFarApart * static_cast<double>(ready_order.size()));
}

/// A run of elements that must not share a chunk with what stands before it.
struct Run {
  std::size_t first_element = 0;
  std::size_t element_count = 0;
};

/// Cuts a run into chunks of equal length, at most `target` elements each, at aligned elements.
void cut(const Run& run, BucketId bucket, std::size_t target, std::size_t unit, Plan& plan) {
  const std::size_t pieces = (run.element_count + target - 1) / target;
  if (pieces == 0) {
    return;
  }
  std::size_t piece = (run.element_count + pieces - 1) / pieces;
  piece = (piece + unit - 1) / unit * unit;
  for (std::size_t done = 0; done < run.element_count; done += piece) {
    const std::size_t count = std::min(piece, run.element_count - done);
    plan.chunks.push_back({bucket, run.first_element + done, count, 0, std::nullopt});
  }
}

/// The chunks of a coded bucket.
void add_groups(const Layout& layout, const Layout::Bucket& bucket, Plan& plan) {
  for (std::size_t g = bucket.first_group; g < bucket.first_group + bucket.group_count; ++g) {
    const Layout::Group& group = layout.groups[g];
    plan.chunks.push_back({group.bucket, group.first_element, group.element_count, 0, g});
  }
}

void put_group(const Layout& layout, const Layout::Group& group, ByteWriter& writer) {
  writer.put(layout.buckets[index_of(group.bucket)].codec);
  writer.put(group.owner);
  for (std::size_t s = 0; s < group.segment_count; ++s) {
    const spi::CodecSegment& segment = layout.segments[group.first_segment + s].segment;
    writer.put(static_cast<std::uint64_t>(segment.element_count));
    writer.put(static_cast<std::uint64_t>(segment.row_elements));
    writer.put(segment.seed);
  }
}

std::uint64_t hash_of(const Layout& layout, const Plan& plan) {
  ByteWriter writer;
  for (const Layout::Bucket& bucket : layout.buckets) {
    writer.put(bucket.dtype);
    writer.put(bucket.rule);
    writer.put(static_cast<std::uint64_t>(bucket.element_count));
  }
  for (const Plan::Chunk& chunk : plan.chunks) {
    writer.put(chunk.bucket);
    writer.put(static_cast<std::uint64_t>(chunk.first_element));
    writer.put(static_cast<std::uint64_t>(chunk.element_count));
    if (chunk.group) {
      put_group(layout, layout.groups[*chunk.group], writer);
    }
  }
  return hash_bytes(writer.bytes());
}

/// A chunk is complete when its last parameter is, so it goes by that parameter's position.
void set_priorities(const Layout& layout, std::span<const std::uint32_t> ready_order, Plan& plan) {
  std::size_t first = 0;  // chunks before this one end before the parameter begins
  for (const ParameterId id : layout.order) {
    const Layout::Place& place = layout.places[index_of(id)];
    for (std::size_t c = first; c < plan.chunks.size(); ++c) {
      Plan::Chunk& chunk = plan.chunks[c];
      const bool before = chunk.bucket < place.bucket ||
                          (chunk.bucket == place.bucket &&
                           chunk.first_element + chunk.element_count <= place.first_element);
      if (before) {
        first = c + 1;
        continue;
      }
      if (chunk.bucket != place.bucket ||
          chunk.first_element >= place.first_element + place.element_count) {
        break;
      }
      chunk.priority = std::max(chunk.priority, position(ready_order, id));
    }
  }
}

}  // namespace

Plan make_plan(const Layout& layout,
               std::span<const std::uint32_t> ready_order,
               std::size_t chunk_bytes,
               bool coded) {
  Plan plan;
  std::size_t at = 0;  // in layout.order
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    const Layout::Bucket& bucket = layout.buckets[b];
    const auto bucket_id = BucketId{static_cast<std::uint32_t>(b)};
    if (coded && bucket.codec != 0) {
      add_groups(layout, bucket, plan);
      while (at < layout.order.size() &&
             layout.places[index_of(layout.order[at])].bucket == bucket_id) {
        ++at;
      }
      continue;
    }
    const std::size_t unit = kAlignment / size_of(bucket.dtype);
    const bool chunk_per_parameter = chunk_bytes == 0;
    const std::size_t target =
        chunk_per_parameter ? SIZE_MAX / 2
                            : std::max(unit, chunk_bytes / size_of(bucket.dtype) / unit * unit);
    Run run;
    bool first_of_bucket = true;
    for (; at < layout.order.size(); ++at) {
      const ParameterId id = layout.order[at];
      const Layout::Place& place = layout.places[index_of(id)];
      if (place.bucket != bucket_id) {
        break;
      }
      if (!first_of_bucket &&
          (chunk_per_parameter || far_apart(ready_order, layout.order[at - 1], id))) {
        run.element_count = place.first_element - run.first_element;
        cut(run, bucket_id, target, unit, plan);
        run.first_element = place.first_element;
      }
      first_of_bucket = false;
    }
    run.element_count = bucket.element_count - run.first_element;
    cut(run, bucket_id, target, unit, plan);
  }
  set_priorities(layout, ready_order, plan);
  plan.hash = hash_of(layout, plan);
  return plan;
}

double order_drift(std::span<const std::uint32_t> expected, std::span<const std::uint32_t> seen) {
  const std::size_t n = expected.size();
  if (n < 2 || seen.size() != n) {
    return 0;
  }
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += std::abs(static_cast<double>(expected[i]) - static_cast<double>(seen[i]));
  }
  const double largest = static_cast<double>(n * n / 2);  // of a reversed order
  return sum / largest;
}

}  // namespace stretto::schedule

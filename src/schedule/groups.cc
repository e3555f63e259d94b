// SPDX-License-Identifier: Apache-2.0
#include "base/hash.hpp"
#include "schedule/layout.hpp"

#include <algorithm>
#include <array>

namespace stretto::schedule {
namespace {

/// Messages of compressed gradients are not cut smaller than this, so that heads stay small beside
/// them.
constexpr std::size_t kLeastMessageBytes = 4096;
/// As many groups has each owner at least, as far as the above allows.
constexpr std::size_t kGroupsPerOwner = 8;

/// The same on all ranks, and for no other segment.
std::uint64_t seed_of(const ParameterSpec& spec, std::size_t first_element) {
  const std::array<std::uint64_t, 2> parts{
      hash_bytes(std::as_bytes(std::span(spec.name.data(), spec.name.size()))), first_element};
  return hash_bytes(std::as_bytes(std::span(parts)));
}

/// Bytes that a segment's wires have in one step, from one rank; at most.
std::size_t wire_bytes(const spi::Codec& codec, const spi::CodecSegment& segment) {
  std::size_t bytes = 0;
  for (unsigned round = 0; round < codec.traits().rounds; ++round) {
    bytes += codec.most_wire_bytes(segment, round);
  }
  return bytes;
}

/// A segment and where it begins in its bucket.
struct Cut {
  spi::CodedSegment segment;
  ParameterId parameter{0};
  std::size_t wire_bytes = 0;
};

void cut_parameter(ParameterId id,
                   const Layout::Place& place,
                   const ParameterSpec& spec,
                   const spi::Codec& codec,
                   std::vector<Cut>& cuts) {
  const std::size_t length = codec.traits().whole_parameter
                                 ? std::max<std::size_t>(place.element_count, 1)
                                 : codec.traits().segment_elements;
  for (std::size_t first = 0; first < place.element_count; first += length) {
    Cut cut;
    cut.parameter = id;
    cut.segment.name = spec.name;
    cut.segment.first_element = place.first_element + first;
    cut.segment.segment = {spec.dtype,
                           std::min(length, place.element_count - first),
                           row_elements(spec.shape),
                           seed_of(spec, first)};
    cut.wire_bytes = wire_bytes(codec, cut.segment.segment);
    cuts.push_back(cut);
  }
}

std::size_t count_groups(std::size_t wire, std::size_t ranks, std::size_t message_bytes) {
  const std::size_t wanted =
      std::max<std::size_t>(wire / std::max(message_bytes, kLeastMessageBytes), 1);
  const std::size_t possible = std::max<std::size_t>(wire / kLeastMessageBytes, 1);
  return std::max(wanted, std::min(kGroupsPerOwner * ranks, possible));
}

Rank least_of(const std::vector<std::size_t>& owned) {
  const auto least = std::min_element(owned.begin(), owned.end()) - owned.begin();
  return Rank{static_cast<std::uint32_t>(least)};
}

/// Joins the segments of one bucket; `owned` is what each rank owns so far.
void join(const std::vector<Cut>& cuts,
          BucketId bucket_id,
          std::size_t message_bytes,
          std::vector<std::size_t>& owned,
          Layout& layout) {
  Layout::Bucket& bucket = layout.buckets[index_of(bucket_id)];
  bucket.first_group = layout.groups.size();
  std::size_t all = 0;
  for (const Cut& cut : cuts) {
    all += cut.wire_bytes;
  }
  const std::size_t count = count_groups(all, owned.size(), message_bytes);
  std::size_t done = 0;  // wire bytes of segments that have a group
  std::size_t in_group = 0;
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    if (in_group == 0) {
      Layout::Group group;
      group.bucket = bucket_id;
      group.first_element = i == 0 ? 0 : cuts[i].segment.first_element;
      group.first_segment = layout.segments.size();
      layout.groups.push_back(group);
    }
    Layout::Group& group = layout.groups.back();
    layout.segments.push_back(cuts[i].segment);
    layout.segments.back().first_element -= group.first_element;
    layout.segment_parameters.push_back(cuts[i].parameter);
    ++group.segment_count;
    in_group += std::max<std::size_t>(cuts[i].wire_bytes, 1);
    done += cuts[i].wire_bytes;
    const std::size_t groups = layout.groups.size() - bucket.first_group;
    if (i + 1 == cuts.size() || done * count >= all * groups) {
      const std::size_t end =
          i + 1 == cuts.size() ? bucket.element_count : cuts[i + 1].segment.first_element;
      group.element_count = end - group.first_element;
      group.owner = least_of(owned);
      owned[index_of(group.owner)] += in_group;
      in_group = 0;
    }
  }
  bucket.group_count = layout.groups.size() - bucket.first_group;
}

}  // namespace

std::size_t row_elements(const Shape& shape) noexcept {
  return shape.size() < 2 || shape[0] == 0
             ? 0
             : element_count(shape) / static_cast<std::size_t>(shape[0]);
}

void make_groups(Layout& layout,
                 std::span<const ParameterSpec> parameters,
                 const Coding& coding,
                 std::size_t ranks,
                 std::size_t message_bytes) {
  layout.groups.clear();
  layout.segments.clear();
  layout.segment_parameters.clear();
  std::vector<std::size_t> owned(ranks, 0);
  std::size_t at = 0;  // in layout.order
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    const auto bucket_id = BucketId{static_cast<std::uint32_t>(b)};
    const std::uint8_t codec = layout.buckets[b].codec;
    std::vector<Cut> cuts;
    for (; at < layout.order.size(); ++at) {
      const ParameterId id = layout.order[at];
      const Layout::Place& place = layout.places[index_of(id)];
      if (place.bucket != bucket_id) {
        break;
      }
      if (codec != 0) {
        cut_parameter(id, place, parameters[index_of(id)], *coding.codecs[codec], cuts);
      }
    }
    if (codec != 0) {
      join(cuts, bucket_id, message_bytes, owned, layout);
    }
  }
}

spi::ChunkDescription describe_group(const Layout& layout,
                                     const Coding& coding,
                                     std::size_t group) noexcept {
  const Layout::Group& entry = layout.groups[group];
  const Layout::Bucket& bucket = layout.buckets[index_of(entry.bucket)];
  return {entry.bucket,
          bucket.dtype,
          entry.element_count,
          spi::Combine::kMean,
          coding.codecs[bucket.codec].get(),
          std::span(layout.segments).subspan(entry.first_segment, entry.segment_count),
          entry.owner};
}

}  // namespace stretto::schedule

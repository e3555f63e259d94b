// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/engine.hpp"
#include "stretto/spi/exchange.hpp"
#include "stretto/types.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace stretto::schedule {

/// Where each parameter lies.  Fixed at commit: re-planning moves boundaries and priorities, never
/// memory.
struct Layout {
  /// A run of parameters of one dtype, one rule and one codec.
  struct Bucket {
    DType dtype = DType::kFloat32;
    Rule rule = Rule::kMean;
    std::size_t first_byte = 0;     ///< in the arena
    std::size_t element_count = 0;  ///< with the padding between parameters
    std::uint8_t codec = 0;         ///< number in Coding::codecs; 0: its bytes travel as they are
    std::size_t first_group = 0;
    std::size_t group_count = 0;
  };
  /// Neighbouring segments of a coded bucket that travel as one message; together the groups of a
  /// bucket cover it once.
  struct Group {
    BucketId bucket{0};
    std::size_t first_element = 0;  ///< in its bucket
    std::size_t element_count = 0;
    std::size_t first_segment = 0;
    std::size_t segment_count = 0;
    Rank owner{0};
  };
  /// One parameter's place.
  struct Place {
    BucketId bucket{0};
    std::size_t first_element = 0;  ///< in its bucket
    std::size_t element_count = 0;
  };
  std::vector<Bucket> buckets;
  std::vector<Place> places;       ///< by parameter id
  std::vector<ParameterId> order;  ///< parameters as they lie in memory
  std::size_t arena_bytes = 0;
  std::vector<Group> groups;
  std::vector<spi::CodedSegment> segments;      ///< by place; first_element counts from its group's
  std::vector<ParameterId> segment_parameters;  ///< by segment
};

/// Which codec each parameter has.  The same on all ranks.
struct Coding {
  std::vector<std::shared_ptr<const spi::Codec>> codecs{nullptr};  ///< by number; 0: none
  std::vector<std::uint8_t> of_parameter;                          ///< by parameter; empty: all 0
};

/// Parameters start at multiples of this, so that no kernel meets a misaligned one.
inline constexpr std::size_t kAlignment = 64;

/// Lays parameters out: buckets by rule, dtype and codec, in each the order of registration.
/// `alone`, if given, is the number of a parameter that shares its bucket with none and lies at the
/// end.
///
/// Cost: O(parameters).
Layout make_layout(std::span<const ParameterSpec> parameters,
                   std::optional<std::size_t> alone = std::nullopt,
                   const Coding& coding = {});

/// Elements of a row where a parameter is seen as a matrix, whose rows are its first dimension; 0
/// for vectors.
std::size_t row_elements(const Shape& shape) noexcept;

/// Cuts the coded buckets into segments, joins these to groups whose wires have about
/// `message_bytes`, and gives each group an owner, so that all ranks own wires of like length.
/// There are several groups for each owner where their wires are not too small for that: the first
/// is on its way long before the last is ready.
///
/// Ownership: names of `parameters` are referred to.        Cost: O(segments + groups * ranks).
void make_groups(Layout& layout,
                 std::span<const ParameterSpec> parameters,
                 const Coding& coding,
                 std::size_t ranks,
                 std::size_t message_bytes);

/// A group as an exchange sees it; refers to layout and coding.
spi::ChunkDescription describe_group(const Layout& layout,
                                     const Coding& coding,
                                     std::size_t group) noexcept;

}  // namespace stretto::schedule

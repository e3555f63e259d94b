// SPDX-License-Identifier: Apache-2.0
#include "schedule/layout.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace stretto::schedule {
namespace {

std::size_t padded(std::size_t count, DType dtype) {
  const std::size_t unit = kAlignment / size_of(dtype);
  return (count + unit - 1) / unit * unit;
}

}  // namespace

Layout make_layout(std::span<const ParameterSpec> parameters,
                   std::optional<std::size_t> alone,
                   const Coding& coding) {
  Layout layout;
  layout.places.resize(parameters.size());
  layout.order.resize(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    layout.order[i] = ParameterId{static_cast<std::uint32_t>(i)};
  }
  const auto codec_of = [&](ParameterId id) {
    return index_of(id) < coding.of_parameter.size() ? coding.of_parameter[index_of(id)]
                                                     : std::uint8_t{0};
  };
  const auto kind = [&](ParameterId id) {
    const ParameterSpec& spec = parameters[index_of(id)];
    return std::tuple(alone == index_of(id), spec.rule, codec_of(id), spec.dtype);
  };
  std::stable_sort(layout.order.begin(), layout.order.end(), [&](ParameterId a, ParameterId b) {
    return kind(a) < kind(b);
  });
  for (std::size_t at = 0; at < layout.order.size(); ++at) {
    const ParameterId id = layout.order[at];
    const ParameterSpec& spec = parameters[index_of(id)];
    if (at == 0 || kind(layout.order[at - 1]) != kind(id)) {
      layout.buckets.push_back({spec.dtype, spec.rule, layout.arena_bytes, 0, codec_of(id)});
    }
    Layout::Bucket& bucket = layout.buckets.back();
    const std::size_t count = element_count(spec.shape);
    const auto bucket_id = BucketId{static_cast<std::uint32_t>(layout.buckets.size() - 1)};
    layout.places[index_of(id)] = {bucket_id, bucket.element_count, count};
    bucket.element_count += padded(count, spec.dtype);
    layout.arena_bytes = bucket.first_byte + bucket.element_count * size_of(bucket.dtype);
  }
  return layout;
}

}  // namespace stretto::schedule

// SPDX-License-Identifier: Apache-2.0
#include "engine/agreement.hpp"

#include "base/byte_order.hpp"
#include "base/fault_point.hpp"

#include <string>

namespace stretto::engine {
namespace {

constexpr std::uint32_t kFormat = 1;  // grows whenever ranks of two versions could misunderstand
constexpr std::string_view kVersion = STRETTO_VERSION;

/// What one rank brings to the agreement.
struct Offer {
  std::uint32_t format = 0;
  std::string version;
  std::vector<std::pair<std::string, std::string>> options;
  std::vector<ParameterSpec> parameters;
};

Offer own_offer(std::span<const ParameterSpec> parameters,
                const EngineOptions& options,
                const std::string& codecs) {
  return {kFormat,
          std::string(kVersion),
          {{"chunk size", std::to_string(options.chunk_bytes)},
           {"one-hop size", std::to_string(options.one_hop_bytes)},
           {"scratch size", std::to_string(options.scratch_bytes)},
           {"exchange", std::string(to_string(options.exchange))},
           {"order of sums", std::string(to_string(options.order))},
           {"schedule", std::string(to_string(options.schedule))},
           {"codec", options.codec},
           {"rules for codecs", options.codec_rules},
           {"least size for a codec", std::to_string(options.codec_minimum)},
           {"set of codecs", codecs},
           {"replica check", std::to_string(options.check_replicas_every)}},
          {parameters.begin(), parameters.end()}};
}

spi::Bytes encode(const Offer& offer) {
  ByteWriter writer;
  writer.put(offer.format);
  writer.put_text(offer.version);
  writer.put(static_cast<std::uint32_t>(offer.options.size()));
  for (const auto& [name, value] : offer.options) {
    writer.put_text(name);
    writer.put_text(value);
  }
  writer.put(static_cast<std::uint32_t>(offer.parameters.size()));
  for (const ParameterSpec& spec : offer.parameters) {
    writer.put_text(spec.name);
    writer.put(spec.dtype);
    writer.put(spec.rule);
    writer.put(static_cast<std::uint32_t>(spec.shape.size()));
    for (const std::int64_t length : spec.shape) {
      writer.put(length);
    }
  }
  return std::move(writer).take();
}

ParameterSpec decode_parameter(ByteReader& reader) {
  ParameterSpec spec;
  spec.name = reader.get_text();
  spec.dtype = reader.get<DType>();
  spec.rule = reader.get<Rule>();
  for (auto left = reader.get<std::uint32_t>(); left > 0 && reader.ok(); --left) {
    spec.shape.push_back(reader.get<std::int64_t>());
  }
  return spec;
}

Result<Offer> decode(std::span<const std::byte> bytes, std::size_t rank) {
  ByteReader reader(bytes);
  Offer offer;
  offer.format = reader.get<std::uint32_t>();
  offer.version = reader.get_text();
  if (offer.format != kFormat) {
    return offer;  // the rest may be written in another way
  }
  for (auto left = reader.get<std::uint32_t>(); left > 0 && reader.ok(); --left) {
    std::string name = reader.get_text();
    offer.options.emplace_back(std::move(name), reader.get_text());
  }
  for (auto left = reader.get<std::uint32_t>(); left > 0 && reader.ok(); --left) {
    offer.parameters.push_back(decode_parameter(reader));
  }
  if (!reader.ok()) {
    return fail(StatusCode::kCorruptWire,
                "rank " + std::to_string(rank) + " described its parameters incompletely");
  }
  return offer;
}

std::string rank_text(std::size_t rank) {
  return "rank " + std::to_string(rank);
}

std::string describe(const ParameterSpec& spec) {
  return spec.name + " " + to_string(spec.shape) + " " + std::string(to_string(spec.dtype));
}

Status mismatch(const std::string& what) {
  return {StatusCode::kInvalidArgument,
          what + "; all ranks must run the same program on the same model"};
}

Status compare_parameters(const Offer& first, const Offer& other, std::size_t rank) {
  const std::size_t common = std::min(first.parameters.size(), other.parameters.size());
  for (std::size_t p = 0; p < common; ++p) {
    const ParameterSpec& a = first.parameters[p];
    const ParameterSpec& b = other.parameters[p];
    if (a.name != b.name || a.shape != b.shape || a.dtype != b.dtype || a.rule != b.rule) {
      return mismatch("rank 0 has " + describe(a) + " as parameter " + std::to_string(p) + ", " +
                      rank_text(rank) + " has " + describe(b));
    }
  }
  if (first.parameters.size() != other.parameters.size()) {
    const bool more = first.parameters.size() > common;
    const ParameterSpec& extra = (more ? first : other).parameters[common];
    return mismatch("rank 0 has " + std::to_string(first.parameters.size()) + " parameters, " +
                    rank_text(rank) + " has " + std::to_string(other.parameters.size()) + "; " +
                    describe(extra) + " is only on " + rank_text(more ? 0 : rank));
  }
  return {};
}

Status compare(const Offer& first, const Offer& other, std::size_t rank) {
  if (first.format != other.format || first.version != other.version) {
    return mismatch("rank 0 runs Stretto " + first.version + " (format " +
                    std::to_string(first.format) + "), " + rank_text(rank) + " runs " +
                    other.version + " (format " + std::to_string(other.format) + ")");
  }
  STRETTO_TRY(compare_parameters(first, other, rank));
  for (std::size_t i = 0; i < first.options.size() && i < other.options.size(); ++i) {
    if (first.options[i] != other.options[i]) {
      return mismatch("the " + first.options[i].first + " is " + first.options[i].second +
                      " on rank 0 and " + other.options[i].second + " on " + rank_text(rank));
    }
  }
  return {};
}

}  // namespace

Status agree_on_parameters(spi::ControlPlane& control,
                           std::span<const ParameterSpec> parameters,
                           const EngineOptions& options,
                           const std::string& codecs,
                           Deadline deadline) {
  const auto mine = encode(own_offer(parameters, options, codecs));
  fault_point("agreement.begin", index_of(control.rank()));
  STRETTO_TRY_ASSIGN(const auto offers, control.all_gather("the parameters", mine, deadline));
  fault_point("agreement.gathered", index_of(control.rank()));
  STRETTO_TRY_ASSIGN(const Offer first, decode(offers[0], 0));
  for (std::size_t rank = 1; rank < offers.size(); ++rank) {
    STRETTO_TRY_ASSIGN(const Offer other, decode(offers[rank], rank));
    STRETTO_TRY(compare(first, other, rank));
  }
  return {};
}

namespace {

/// An agreement while training says which step it held up, as every other wait does.
Result<std::vector<spi::Bytes>> gather_in_step(spi::ControlPlane& control,
                                               std::uint64_t step,
                                               const std::string& what,
                                               std::span<const std::byte> mine,
                                               Deadline deadline) {
  auto blobs = control.all_gather(what, mine, deadline);
  if (!blobs) {
    return fail(blobs.error().code(),
                "step " + std::to_string(step) + ", waiting for " + what + ": " +
                    std::string(blobs.error().message()));
  }
  return blobs;
}

}  // namespace

Status agree_to_change_plan(spi::ControlPlane& control, std::uint64_t step, Deadline deadline) {
  const auto gathered = gather_in_step(control, step, "the change of plan", {}, deadline);
  return gathered ? Status() : gathered.error();
}

Result<std::vector<std::uint32_t>> agree_on_order(spi::ControlPlane& control,
                                                  std::span<const std::uint32_t> seen,
                                                  std::uint64_t step,
                                                  Deadline deadline) {
  STRETTO_TRY_ASSIGN(
      const auto blobs,
      gather_in_step(control, step, "the order of gradients", std::as_bytes(seen), deadline));
  if (blobs[0].size() != seen.size_bytes()) {
    return fail(StatusCode::kCorruptWire, "rank 0 sent an order of another length");
  }
  std::vector<std::uint32_t> order(seen.size());
  std::memcpy(order.data(), blobs[0].data(), blobs[0].size());
  return order;
}

Result<std::uint64_t> agree_on_total(spi::ControlPlane& control,
                                     std::uint64_t samples,
                                     std::uint64_t step,
                                     Deadline deadline) {
  ByteWriter writer;
  writer.put(samples);
  STRETTO_TRY_ASSIGN(
      const auto blobs,
      gather_in_step(control, step, "the samples of all ranks", writer.bytes(), deadline));
  std::uint64_t total = 0;
  for (const spi::Bytes& blob : blobs) {
    total += ByteReader(blob).get<std::uint64_t>();
  }
  return total;
}

Status agree_on_values(spi::ControlPlane& control,
                       std::span<const ParameterSpec> parameters,
                       std::span<const std::uint64_t> hashes,
                       std::uint64_t step,
                       Deadline deadline) {
  STRETTO_TRY_ASSIGN(
      const auto blobs,
      gather_in_step(control, step, "the replica check", std::as_bytes(hashes), deadline));
  for (std::size_t p = 0; p < hashes.size(); ++p) {
    std::string others;
    for (std::size_t rank = 1; rank < blobs.size(); ++rank) {
      if (blobs[rank].size() != hashes.size_bytes() ||
          std::memcmp(blobs[rank].data() + p * sizeof(std::uint64_t),
                      blobs[0].data() + p * sizeof(std::uint64_t),
                      sizeof(std::uint64_t)) != 0) {
        others += (others.empty() ? "" : ", ") + rank_text(rank);
      }
    }
    if (!others.empty()) {
      return {StatusCode::kAborted,
              "after step " + std::to_string(step) +
                  " the ranks no longer hold the same weights: " + parameters[p].name +
                  " is the first parameter that differs from rank 0's, on " + others +
                  "; was a weight changed outside of the optimizer?"};
    }
  }
  return {};
}

}  // namespace stretto::engine

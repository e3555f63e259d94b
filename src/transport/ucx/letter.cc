// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/letter.hpp"

#include "base/byte_order.hpp"

#include <algorithm>
#include <cstring>

namespace stretto::transport {

void LetterHead::start(const Envelope& envelope) noexcept {
  const auto rank = static_cast<std::uint32_t>(index_of(envelope.from));
  bytes_.fill(std::byte{0});
  std::memcpy(bytes_.data(), &envelope.job, sizeof envelope.job);
  std::memcpy(bytes_.data() + sizeof envelope.job, &rank, sizeof rank);
  size_ = kEnvelopeBytes;
}

void LetterHead::append(std::span<const std::byte> bytes) noexcept {
  std::copy(bytes.begin(), bytes.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(size_));
  size_ += bytes.size();
}

std::optional<Envelope> open_envelope(std::span<const std::byte>& header) noexcept {
  if (header.size() < kEnvelopeBytes) {
    return std::nullopt;
  }
  ByteReader reader(header.first(kEnvelopeBytes));
  Envelope envelope;
  envelope.job = reader.get<std::uint64_t>();
  envelope.from = Rank{reader.get<std::uint32_t>()};
  header = header.subspan(kEnvelopeBytes);
  return envelope;
}

}  // namespace stretto::transport

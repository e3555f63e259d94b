// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/frame.hpp"

#include "base/byte_order.hpp"
#include "base/hash.hpp"
#include "rendezvous/gather_round.hpp"

#include <algorithm>
#include <random>

#include <sys/random.h>

namespace stretto::rendezvous {
namespace {

constexpr std::uint32_t kMagic = 0x43525453;  // "STRC"

SharedFrame finish(FrameKind kind, const ByteWriter& body) {
  return encode(kind, std::span<const std::byte>(body.bytes()));
}

}  // namespace

void FrameReader::append(std::span<const std::byte> bytes) {
  if (head_ > 0 && (head_ == buffer_.size() || head_ > buffer_.size() / 2)) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

Result<std::optional<Frame>> FrameReader::next() {
  const auto rest = std::span<const std::byte>(buffer_).subspan(head_);
  if (rest.size() < kFrameHeaderBytes) {
    return std::optional<Frame>();
  }
  ByteReader reader(rest);
  const auto magic = reader.get<std::uint32_t>();
  const auto kind = reader.get<std::uint8_t>();
  const auto zeros = reader.get<std::array<std::uint8_t, 3>>();
  const std::size_t length = reader.get<std::uint32_t>();
  if (magic != kMagic || kind == 0 || kind > kLastFrameKind ||
      zeros != std::array<std::uint8_t, 3>{} || length > most_body_bytes_) {
    return fail(StatusCode::kCorruptWire, "bytes that are not a control message of Stretto");
  }
  if (rest.size() < kFrameHeaderBytes + length) {
    return std::optional<Frame>();
  }
  const auto body = rest.subspan(kFrameHeaderBytes, length);
  head_ += kFrameHeaderBytes + length;
  return std::optional<Frame>(
      Frame{static_cast<FrameKind>(kind), spi::Bytes(body.begin(), body.end())});
}

SharedFrame encode(FrameKind kind, std::span<const std::byte> body) {
  ByteWriter writer;
  writer.put(kMagic);
  writer.put(static_cast<std::uint8_t>(kind));
  writer.put(std::array<std::uint8_t, 3>{});
  writer.put(static_cast<std::uint32_t>(body.size()));
  writer.put_bytes(body);
  return std::make_shared<const spi::Bytes>(std::move(writer).take());
}

SharedFrame encode(const Challenge& challenge) {
  ByteWriter body;
  body.put(challenge.version);
  body.put(challenge.nonce);
  return finish(FrameKind::kChallenge, body);
}

SharedFrame encode(const Hello& hello) {
  ByteWriter body;
  body.put(hello.version);
  body.put(hello.rank);
  body.put(hello.size);
  body.put(hello.nonce);
  body.put(hello.proof);
  return finish(FrameKind::kHello, body);
}

SharedFrame encode(const Accepted& accepted) {
  ByteWriter body;
  body.put(accepted.proof);
  body.put(accepted.job);
  body.put(accepted.dead_after_ms);
  return finish(FrameKind::kAccepted, body);
}

SharedFrame encode(FrameKind kind, const Notice& notice) {
  ByteWriter body;
  body.put(notice.number);
  body.put_text(std::string_view(notice.text).substr(0, kMostTextBytes));
  return finish(kind, body);
}

SharedFrame encode(const GatherCall& call) {
  ByteWriter body;
  body.put(call.sequence);
  body.put_text(call.what);
  body.put_bytes(call.blob);
  return finish(FrameKind::kGather, body);
}

SharedFrame encode(std::uint64_t sequence, const std::vector<spi::Bytes>& blobs) {
  ByteWriter body;
  body.put(sequence);
  body.put(static_cast<std::uint32_t>(blobs.size()));
  for (const auto& blob : blobs) {
    body.put(static_cast<std::uint32_t>(blob.size()));
    body.put_bytes(blob);
  }
  return finish(FrameKind::kGathered, body);
}

std::optional<Challenge> decode_challenge(std::span<const std::byte> body) {
  ByteReader reader(body);
  Challenge challenge;
  challenge.version = reader.get<std::uint32_t>();
  challenge.nonce = reader.get<Nonce>();
  return reader.ok() ? std::optional(challenge) : std::nullopt;
}

std::optional<Hello> decode_hello(std::span<const std::byte> body) {
  ByteReader reader(body);
  Hello hello;
  hello.version = reader.get<std::uint32_t>();
  hello.rank = reader.get<std::uint32_t>();
  if (reader.ok() && hello.version != kWireVersion) {
    return hello;
  }
  hello.size = reader.get<std::uint32_t>();
  hello.nonce = reader.get<Nonce>();
  hello.proof = reader.get<std::uint64_t>();
  return reader.ok() && reader.at_end() ? std::optional(hello) : std::nullopt;
}

std::optional<Accepted> decode_accepted(std::span<const std::byte> body) {
  ByteReader reader(body);
  Accepted accepted;
  accepted.proof = reader.get<std::uint64_t>();
  accepted.job = reader.get<std::uint64_t>();
  accepted.dead_after_ms = reader.get<std::uint32_t>();
  return reader.ok() && reader.at_end() ? std::optional(accepted) : std::nullopt;
}

std::optional<Notice> decode_notice(std::span<const std::byte> body) {
  ByteReader reader(body);
  Notice notice;
  notice.number = reader.get<std::uint64_t>();
  notice.text = reader.get_text();
  if (!reader.ok() || !reader.at_end() || notice.text.size() > kMostTextBytes) {
    return std::nullopt;
  }
  // A peer's text ends in logs and terminals: nothing in it may act there.
  std::replace_if(
      notice.text.begin(),
      notice.text.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; },
      ' ');
  return notice;
}

std::optional<GatherCall> decode_gather_call(std::span<const std::byte> body) {
  ByteReader reader(body);
  GatherCall call;
  call.sequence = reader.get<std::uint64_t>();
  call.what = reader.get_text();
  if (!reader.ok() || call.what.size() > kMostWhatBytes) {
    return std::nullopt;
  }
  const std::size_t used = sizeof(std::uint64_t) + sizeof(std::uint32_t) + call.what.size();
  const auto blob = body.subspan(used);
  call.blob.assign(blob.begin(), blob.end());
  return call;
}

std::optional<Gathered> decode_gathered(std::span<const std::byte> body) {
  ByteReader reader(body);
  Gathered gathered;
  gathered.sequence = reader.get<std::uint64_t>();
  const std::size_t count = reader.get<std::uint32_t>();
  if (!reader.ok() || count > kMostRanks) {
    return std::nullopt;
  }
  gathered.blobs.reserve(count);
  for (std::size_t i = 0; i < count && reader.ok(); ++i) {
    const auto blob = reader.get_bytes(reader.get<std::uint32_t>());
    gathered.blobs.emplace_back(blob.begin(), blob.end());
  }
  return reader.ok() && reader.at_end() ? std::optional(std::move(gathered)) : std::nullopt;
}

Nonce make_nonce() {
  Nonce nonce{};
  if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    std::random_device device;
    for (auto& byte : nonce) {
      byte = static_cast<std::byte>(device());
    }
  }
  return nonce;
}

std::uint64_t prove_token(std::string_view token,
                          Prover prover,
                          const Nonce& of_rank_zero,
                          const Nonce& of_joiner,
                          std::uint32_t rank,
                          std::uint32_t size) {
  ByteWriter writer;
  writer.put(prover);
  writer.put_text(token);
  writer.put(of_rank_zero);
  writer.put(of_joiner);
  writer.put(rank);
  writer.put(size);
  return hash_bytes(writer.bytes(), hash_text(token, 0x5354524554544fULL));
}

}  // namespace stretto::rendezvous

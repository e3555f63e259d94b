// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/handshake.hpp"

#include "base/byte_order.hpp"
#include "base/hash.hpp"
#include "transport/wire.hpp"

#include <cstring>

namespace stretto::transport {
namespace {

constexpr std::uint64_t kMagic = 0x314f545445525453;  // "STRETTO1" on the wire

template <typename T>
void put(std::span<std::byte> bytes, std::size_t offset, T value) noexcept {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

}  // namespace

struct Handshake::Message {
  std::uint64_t magic = 0;
  std::uint8_t version = 0;
  Kind kind{};
  Refusal refusal{};
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::uint64_t job_id = 0;
  std::uint64_t nonce = 0;
  std::uint64_t proof = 0;
};

std::string_view to_string(Refusal refusal) noexcept {
  switch (refusal) {
    case Refusal::kNone:
      return "it was not refused";
    case Refusal::kGarbage:
      return "it does not speak this protocol";
    case Refusal::kVersion:
      return "it is another version of Stretto";
    case Refusal::kJob:
      return "it belongs to another job";
    case Refusal::kSize:
      return "its group has another size";
    case Refusal::kRank:
      return "its rank is not expected here or is connected already";
    case Refusal::kToken:
      return "its token is another one";
  }
  return "for a reason that this version does not know";
}

Handshake Handshake::connector(const Identity& identity, Rank peer, std::uint64_t nonce) {
  Handshake handshake(identity, true, peer, nonce);
  handshake.peer_is_known_ = true;
  handshake.expected_ = Kind::kChallenge;
  handshake.say(Kind::kHello, nonce, 0, Refusal::kNone);
  return handshake;
}

Handshake Handshake::acceptor(const Identity& identity, std::uint64_t nonce) {
  return Handshake(identity, false, Rank{0}, nonce);
}

std::span<std::byte> Handshake::input() noexcept {
  if (state_ != State::kTalking) {
    return {};
  }
  return std::span(input_).subspan(input_end_);
}

std::span<const std::byte> Handshake::output() const noexcept {
  return std::span(output_).subspan(output_begin_, output_end_ - output_begin_);
}

void Handshake::received(std::size_t bytes) noexcept {
  input_end_ += bytes;
  if (state_ != State::kTalking || input_end_ < kHandshakeBytes) {
    return;
  }
  input_end_ = 0;
  ByteReader reader(input_);
  Message message;
  message.magic = reader.get<std::uint64_t>();
  message.version = reader.get<std::uint8_t>();
  message.kind = static_cast<Kind>(reader.get<std::uint8_t>());
  message.refusal = static_cast<Refusal>(reader.get<std::uint8_t>());
  static_cast<void>(reader.get<std::uint8_t>());
  message.rank = reader.get<std::uint32_t>();
  message.size = reader.get<std::uint32_t>();
  static_cast<void>(reader.get<std::uint32_t>());
  message.job_id = reader.get<std::uint64_t>();
  message.nonce = reader.get<std::uint64_t>();
  message.proof = reader.get<std::uint64_t>();
  handle(message);
}

void Handshake::say(Kind kind, std::uint64_t nonce, std::uint64_t proof, Refusal refusal) noexcept {
  if (output_begin_ == output_end_) {
    output_begin_ = output_end_ = 0;
  }
  if (output_end_ + kHandshakeBytes > output_.size()) {
    return;  // the peer does not read; its deadline will end this
  }
  const auto bytes = std::span(output_).subspan(output_end_, kHandshakeBytes);
  std::memset(bytes.data(), 0, bytes.size());
  put(bytes, 0, kMagic);
  put(bytes, 8, kWireVersion);
  put(bytes, 9, static_cast<std::uint8_t>(kind));
  put(bytes, 10, static_cast<std::uint8_t>(refusal));
  put(bytes, 12, static_cast<std::uint32_t>(identity_->rank));
  put(bytes, 16, static_cast<std::uint32_t>(identity_->size));
  put(bytes, 24, identity_->job_id);
  put(bytes, 32, nonce);
  put(bytes, 40, proof);
  output_end_ += kHandshakeBytes;
}

void Handshake::refuse(Refusal refusal) noexcept {
  state_ = State::kRefused;
  refusal_ = refusal;
  say(Kind::kRefuse, 0, 0, refusal);
}

std::uint64_t Handshake::proof_of(Kind side) const noexcept {
  const auto mine = static_cast<std::uint64_t>(identity_->rank);
  const auto theirs = static_cast<std::uint64_t>(peer_);
  const std::array<std::uint64_t, 6> facts = {static_cast<std::uint64_t>(side),
                                              identity_->job_id,
                                              connects_ ? nonce_ : peer_nonce_,
                                              connects_ ? peer_nonce_ : nonce_,
                                              connects_ ? mine : theirs,
                                              connects_ ? theirs : mine};
  const std::uint64_t inner = hash_bytes(std::as_bytes(std::span(facts)));
  // The token goes into both the seed and the text, so that neither alone gives it away.
  return hash_text(identity_->token, inner ^ hash_text(identity_->token, kMagic));
}

Refusal Handshake::check(const Message& message) const noexcept {
  if (message.magic != kMagic) {
    return Refusal::kGarbage;
  }
  if (message.version != kWireVersion) {
    return Refusal::kVersion;
  }
  if (message.kind != expected_) {
    return Refusal::kGarbage;
  }
  if (message.job_id != identity_->job_id) {
    return Refusal::kJob;
  }
  if (message.size != identity_->size) {
    return Refusal::kSize;
  }
  const bool rank_fits =
      peer_is_known_ ? message.rank == index_of(peer_)
                     : message.rank < identity_->size && message.rank > index_of(identity_->rank);
  return rank_fits ? Refusal::kNone : Refusal::kRank;
}

void Handshake::handle(const Message& message) noexcept {
  if (message.magic == kMagic && message.kind == Kind::kRefuse) {
    state_ = State::kRefused;
    refusal_ = message.refusal;
    refused_by_peer_ = true;
    return;
  }
  const Refusal refusal = check(message);
  if (refusal != Refusal::kNone) {
    refuse(refusal);
    return;
  }
  switch (message.kind) {
    case Kind::kHello:
      peer_ = Rank{message.rank};
      peer_is_known_ = true;
      peer_nonce_ = message.nonce;
      say(Kind::kChallenge, nonce_, proof_of(Kind::kChallenge), Refusal::kNone);
      expected_ = Kind::kProof;
      break;
    case Kind::kChallenge:
      peer_nonce_ = message.nonce;
      if (message.proof != proof_of(Kind::kChallenge)) {
        refuse(Refusal::kToken);
        break;
      }
      say(Kind::kProof, nonce_, proof_of(Kind::kProof), Refusal::kNone);
      expected_ = Kind::kWelcome;
      break;
    case Kind::kProof:
      if (message.proof != proof_of(Kind::kProof)) {
        refuse(Refusal::kToken);
        break;
      }
      say(Kind::kWelcome, 0, 0, Refusal::kNone);
      state_ = State::kDone;
      break;
    case Kind::kWelcome:
      state_ = State::kDone;
      break;
    case Kind::kRefuse:
      break;
  }
}

}  // namespace stretto::transport

// SPDX-License-Identifier: Apache-2.0
#include "transport/wire.hpp"

#include "base/byte_order.hpp"

#include <cstring>
#include <string>

namespace stretto::transport {
namespace {

template <typename T>
void put(std::span<std::byte> bytes, std::size_t offset, T value) noexcept {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

tl::unexpected<Status> corrupt(const char* what, std::uint64_t value) {
  return fail(StatusCode::kCorruptWire, std::string(what) + ' ' + std::to_string(value));
}

/// Whether a frame of this type may have this length and offset.
bool fits_type(const FrameHead& head) noexcept {
  switch (head.type) {
    case FrameType::kAnnounce:
      return head.length == kMessageHeaderBytes && head.message != 0 && head.offset == 0;
    case FrameType::kGrant:
      return head.length == 0 && head.message != 0 && head.offset != 0 &&
             head.offset <= kMaxPayloadBytes;
    case FrameType::kData:
      return head.length != 0 && head.length <= kMaxFragmentBytes && head.message != 0 &&
             head.offset <= kMaxPayloadBytes;
    case FrameType::kBye:
      return head.length == 0 && head.message == 0 && head.offset == 0;
    case FrameType::kCredit:
      return head.length == 0 && head.message == 0 && head.offset != 0;
  }
  return false;
}

}  // namespace

FrameHeadBytes encode(const FrameHead& head) noexcept {
  FrameHeadBytes bytes{};
  put(bytes, 0, kWireVersion);
  put(bytes, 1, static_cast<std::uint8_t>(head.type));
  put(bytes, 4, head.length);
  put(bytes, 8, head.message);
  put(bytes, 16, head.offset);
  return bytes;
}

MessageHeaderBytes encode(const spi::MessageHeader& header) noexcept {
  MessageHeaderBytes bytes{};
  put(bytes, 0, header.step);
  put(bytes, 8, header.plan_hash);
  put(bytes, 16, header.samples);
  put(bytes, 24, header.element_count);
  put(bytes, 32, header.payload_bytes);
  put(bytes, 40, header.epoch);
  put(bytes, 44, header.bucket);
  put(bytes, 48, header.chunk);
  put(bytes, 52, header.shard);
  put(bytes, 56, header.priority);
  put(bytes, 60, static_cast<std::uint8_t>(header.stage));
  put(bytes, 61, static_cast<std::uint8_t>(header.dtype));
  put(bytes, 62, header.codec);
  put(bytes, 63, header.flags);
  return bytes;
}

Result<FrameHead> decode_frame_head(std::span<const std::byte, kFrameHeadBytes> bytes) {
  ByteReader reader(bytes);
  const auto version = reader.get<std::uint8_t>();
  const auto type = reader.get<std::uint8_t>();
  const auto zero = reader.get<std::uint16_t>();
  FrameHead head;
  head.type = static_cast<FrameType>(type);
  head.length = reader.get<std::uint32_t>();
  head.message = reader.get<std::uint64_t>();
  head.offset = reader.get<std::uint64_t>();
  if (version != kWireVersion) {
    return corrupt("a frame of wire version", version);
  }
  if (type < static_cast<std::uint8_t>(FrameType::kAnnounce) ||
      type > static_cast<std::uint8_t>(FrameType::kCredit) || zero != 0) {
    return corrupt("a frame of unknown type", type);
  }
  if (!fits_type(head)) {
    return corrupt("a frame whose length or offset does not fit its type", type);
  }
  return head;
}

Result<spi::MessageHeader> decode_message_header(
    std::span<const std::byte, kMessageHeaderBytes> bytes) {
  ByteReader reader(bytes);
  spi::MessageHeader header;
  header.step = reader.get<std::uint64_t>();
  header.plan_hash = reader.get<std::uint64_t>();
  header.samples = reader.get<std::uint64_t>();
  header.element_count = reader.get<std::uint64_t>();
  header.payload_bytes = reader.get<std::uint64_t>();
  header.epoch = reader.get<std::uint32_t>();
  header.bucket = reader.get<std::uint32_t>();
  header.chunk = reader.get<std::uint32_t>();
  header.shard = reader.get<std::uint32_t>();
  header.priority = reader.get<std::uint32_t>();
  const auto stage = reader.get<std::uint8_t>();
  const auto dtype = reader.get<std::uint8_t>();
  header.codec = reader.get<std::uint8_t>();
  header.flags = reader.get<std::uint8_t>();
  if (stage > static_cast<std::uint8_t>(spi::Stage::kPartialSum)) {
    return corrupt("a message of unknown stage", stage);
  }
  if (dtype > static_cast<std::uint8_t>(DType::kBFloat16)) {
    return corrupt("a message of unknown dtype", dtype);
  }
  if (header.payload_bytes > kMaxPayloadBytes) {
    return corrupt("a message that claims a payload of bytes:", header.payload_bytes);
  }
  header.stage = static_cast<spi::Stage>(stage);
  header.dtype = static_cast<DType>(dtype);
  return header;
}

}  // namespace stretto::transport

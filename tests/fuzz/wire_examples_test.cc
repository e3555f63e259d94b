// SPDX-License-Identifier: Apache-2.0
// The examples from which the fuzz targets of the network and of the codecs start: what our own
// encoders make, so that a target is past its first checks from the beginning.  Fails if the files
// in tests/fuzz/corpus are not these; with STRETTO_WRITE_EXAMPLES it writes them instead.
#include "codec_fuzz.hpp"
#include "exchange/shared/descriptor_test_support.hpp"
#include "rendezvous/frame.hpp"
#include "transport/tcp/handshake.hpp"
#include "transport/wire.hpp"

#include "stretto/spi/transport.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace stretto {
namespace {

using Input = std::vector<std::byte>;
/// By target and name of the example.
using Examples = std::map<std::string, Input>;

void add(Input& input, std::span<const std::byte> bytes) {
  input.insert(input.end(), bytes.begin(), bytes.end());
}

Input joined(std::initializer_list<Input> parts) {
  Input all;
  for (const Input& part : parts) {
    add(all, part);
  }
  return all;
}

Input byte(unsigned value) {
  return {static_cast<std::byte>(value)};
}

// Control frames.

Input bytes_of(const rendezvous::SharedFrame& frame) {
  return *frame;
}

rendezvous::Notice notice() {
  return {1, "rank 1 was lost"};
}

rendezvous::GatherCall gather() {
  return {1, "fuzz", spi::Bytes(20, std::byte{7})};
}

Input gathered(std::size_t ranks) {
  return bytes_of(rendezvous::encode(1, std::vector<spi::Bytes>(ranks, spi::Bytes(20))));
}

/// The first byte says that the stream comes in pieces of five bytes.
void add_control_frames(Examples& examples) {
  using rendezvous::FrameKind;
  const std::map<std::string, Input> frames{
      {"challenge", bytes_of(rendezvous::encode(rendezvous::Challenge{}))},
      {"hello", bytes_of(rendezvous::encode(rendezvous::Hello{.rank = 1, .size = 2}))},
      {"accepted", bytes_of(rendezvous::encode(rendezvous::Accepted{1, 2, 3000}))},
      {"refused", bytes_of(rendezvous::encode(FrameKind::kRefused, notice()))},
      {"gather", bytes_of(rendezvous::encode(gather()))},
      {"gathered", gathered(3)},
      {"several",
       joined({bytes_of(rendezvous::encode(FrameKind::kComplete)),
               bytes_of(rendezvous::encode(FrameKind::kHeartbeat, notice())),
               bytes_of(rendezvous::encode(FrameKind::kBye))})},
  };
  for (const auto& [name, frame] : frames) {
    examples["control_frames_fuzz/" + name] = joined({byte(4), frame});
  }
}

/// The first byte says who is fed: rank 0 (0), another (1); and whether the frames get their
/// headers in the target (2).
void add_control_members(Examples& examples) {
  using rendezvous::FrameKind;
  const std::string folder = "control_members_fuzz/";
  const Input ask = bytes_of(rendezvous::encode(FrameKind::kAskMissing, notice()));
  const Input bye = bytes_of(rendezvous::encode(FrameKind::kBye));
  examples[folder + "to_hub_gather"] =
      joined({byte(0), ask, bytes_of(rendezvous::encode(gather())), bye});
  examples[folder + "to_hub_abort"] =
      joined({byte(0), bytes_of(rendezvous::encode(FrameKind::kAbort, notice()))});
  examples[folder + "to_hub_bye"] = joined({byte(0), bye});
  examples[folder + "to_spoke_too_few"] = joined({byte(1), gathered(2)});
  examples[folder + "to_spoke_gathered"] =
      joined({byte(1), bytes_of(rendezvous::encode(FrameKind::kComplete)), gathered(3), bye});
  examples[folder + "to_spoke_lost"] =
      joined({byte(1),
              bytes_of(rendezvous::encode(FrameKind::kHeartbeat, notice())),
              bytes_of(rendezvous::encode(FrameKind::kMissing, notice())),
              bytes_of(rendezvous::encode(FrameKind::kBroken, notice())),
              bytes_of(rendezvous::encode(FrameKind::kLost, notice()))});
  const auto headless = [](const Input& frame) {
    const Input body(frame.begin() + rendezvous::kFrameHeaderBytes, frame.end());
    return joined({byte(std::to_integer<unsigned>(frame[4])),
                   byte(static_cast<unsigned>(body.size())),
                   body});
  };
  examples[folder + "to_hub_frames"] =
      joined({byte(2), headless(bytes_of(rendezvous::encode(gather()))), headless(ask)});
  examples[folder + "to_spoke_frames"] = joined({byte(3), headless(gathered(3))});
}

// The handshake of data connections.

/// What both sides say if they share a token; it is not the target's, so neither is let in there.
void add_handshakes(Examples& examples) {
  using transport::Handshake;
  const transport::Identity low{Rank{1}, 4, 42, "a token of another job"};
  const transport::Identity high{Rank{3}, 4, 42, low.token};
  const transport::Identity foreign{Rank{3}, 4, 43, low.token};
  auto acceptor = Handshake::acceptor(low, 0x1234567);
  auto connector = Handshake::connector(high, Rank{1}, 0x7654321);
  const auto say = [](Handshake& from, Handshake& to, Input& said) {
    const Input bytes(from.output().begin(), from.output().end());
    std::copy(bytes.begin(), bytes.end(), to.input().begin());
    from.sent(bytes.size());
    to.received(bytes.size());
    add(said, bytes);
  };
  Input connects;
  Input accepts;
  say(connector, acceptor, connects);  // the greeting
  say(acceptor, connector, accepts);   // the challenge
  say(connector, acceptor, connects);  // the proof
  say(acceptor, connector, accepts);   // the welcome
  ASSERT_EQ(acceptor.state(), Handshake::State::kDone);
  ASSERT_EQ(connector.state(), Handshake::State::kDone);
  auto other = Handshake::acceptor(low, 1);
  auto stranger = Handshake::connector(foreign, Rank{1}, 2);
  Input greeting;
  Input refusal;
  say(stranger, other, greeting);
  say(other, stranger, refusal);
  examples["handshake_fuzz/connects"] = connects;
  examples["handshake_fuzz/accepts"] = accepts;
  examples["handshake_fuzz/refuses"] = refusal;
}

// Frames of data connections, to a rank whose one message has 300 bytes, a window of 128, and
// fragments of 64.

Input head(transport::FrameType type,
           std::uint32_t length,
           std::uint64_t message,
           std::uint64_t offset) {
  const auto bytes = transport::encode(transport::FrameHead{type, length, message, offset});
  return {bytes.begin(), bytes.end()};
}

Input announcement(std::uint64_t message, std::uint64_t payload_bytes, std::uint8_t flags = 0) {
  spi::MessageHeader header;
  header.element_count = payload_bytes / 4;
  header.payload_bytes = payload_bytes;
  header.flags = flags;
  const auto bytes = transport::encode(header);
  return joined({head(transport::FrameType::kAnnounce, transport::kMessageHeaderBytes, message, 0),
                 Input(bytes.begin(), bytes.end())});
}

Input data(std::uint64_t message, std::uint64_t offset, std::uint32_t length) {
  return joined(
      {head(transport::FrameType::kData, length, message, offset), Input(length, std::byte{3})});
}

void add_data_frames(Examples& examples) {
  using transport::FrameType;
  const std::string folder = "frame_decoder_fuzz/";
  const Input bye = head(FrameType::kBye, 0, 0, 0);
  examples[folder + "message"] =
      joined({announcement(1, 100), data(1, 0, 64), data(1, 64, 36), bye});
  examples[folder + "two_messages"] = joined({announcement(1, 64),
                                              announcement(2, 64),
                                              data(1, 0, 64),
                                              data(2, 0, 64),
                                              announcement(3, 0),
                                              bye});
  examples[folder + "expected"] =
      joined({announcement(1, 100, spi::kExpected), data(1, 0, 64), data(1, 64, 36), bye});
  examples[folder + "grants"] =
      joined({head(FrameType::kGrant, 0, 1, 128), head(FrameType::kGrant, 0, 1, 300), bye});
  examples[folder + "credit"] = joined({head(FrameType::kCredit, 0, 0, 300), bye});
}

// Letters between ranks of one host; the first byte says how many descriptors go along, and (4)
// that the target puts its secret in front.

void add_letters(Examples& examples) {
  const auto letter = [](std::uint32_t sender, std::uint32_t round) {
    const Input note = exchange::bytes_of(exchange::DescriptorSocket::Note{{}, sender, round});
    return Input(note.begin() + sizeof(exchange::DescriptorSocket::Note::secret), note.end());
  };
  const std::string folder = "descriptor_socket_fuzz/";
  examples[folder + "one_descriptor"] = joined({byte(4 + 1), letter(1, 5)});
  examples[folder + "three_descriptors"] = joined({byte(4 + 3), letter(3, 5)});
  examples[folder + "another_round"] = joined({byte(4 + 1), letter(1, 6)});
  examples[folder + "no_secret"] = joined({byte(1), Input(16), letter(1, 5)});
}

// Wires of codecs; the first byte says which one, the second how many elements.

Input codec_wire(const spi::Codec& codec, std::uint8_t elements) {
  spi::CodecSegment segment;
  segment.element_count = codec::fuzzed_elements(elements);
  segment.seed = elements;
  std::vector<float> values(segment.element_count);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i * 7919 % 1001) - 500.0F;
  }
  Input wire(codec.most_wire_bytes(segment, 0));
  const auto encoding =
      codec.encode(segment, {}, std::as_bytes(std::span(values)), {}, wire).value();
  wire.resize(encoding.wire_bytes);
  return wire;
}

/// The wires of both rounds of a matrix that one rank encodes.
std::vector<Input> factor_wires(const spi::Codec& codec, std::uint8_t rows) {
  const spi::CodecSegment segment = codec::fuzzed_matrix(rows);
  std::vector<float> values(segment.element_count);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i * 7919 % 1001) - 500.0F;
  }
  const std::vector<float> residual(values.size());
  std::vector<float> left(values.size());
  const std::vector<float> state(codec.state_floats(segment));
  std::vector<float> next_state(state.size());
  std::vector<float> scratch(codec.scratch_floats(segment));
  const spi::CodecMemory memory{
      residual.data(), left.data(), 1, state.data(), next_state.data(), scratch.data()};
  std::vector<Input> wires;
  for (unsigned round = 0; round < 2; ++round) {
    spi::CodecRound call;
    call.round = round;
    Input wire(codec.most_wire_bytes(segment, round));
    const auto encoding =
        codec.encode(segment, call, std::as_bytes(std::span(values)), memory, wire).value();
    wire.resize(encoding.wire_bytes);
    std::vector<float> result(values.size());
    const Status decoded =
        codec.decode(segment, call, wire, memory, std::as_writable_bytes(std::span(result)));
    EXPECT_TRUE(decoded.is_ok()) << decoded.to_string();
    wires.push_back(std::move(wire));
  }
  return wires;
}

void add_factors(Examples& examples, const std::string& target, const codec::Codecs& codecs) {
  constexpr std::uint8_t kRows = 3;
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    const auto wires = factor_wires(*codecs[i], kRows);
    for (unsigned round = 0; round < 2; ++round) {
      examples[target + "/codec" + std::to_string(i) + "_round" + std::to_string(round)] =
          joined({byte(static_cast<unsigned>(i) + 128 * round), byte(kRows), wires[round]});
    }
  }
}

void add_codecs(Examples& examples, const std::string& target, const codec::Codecs& codecs) {
  constexpr std::uint8_t kElements = 100;
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    std::string name = codecs[i]->traits().name;
    std::erase_if(name, [](char c) { return c == ':' || c == '%'; });
    examples[target + "/" + name] = joined(
        {byte(static_cast<unsigned>(i)), byte(kElements), codec_wire(*codecs[i], kElements)});
  }
}

std::filesystem::path folder() {
  return STRETTO_FUZZ_CORPUS;
}

void write(const Examples& examples) {
  for (const auto& [name, input] : examples) {
    std::filesystem::create_directories((folder() / name).parent_path());
    std::ofstream file(folder() / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(input.data()),
               static_cast<std::streamsize>(input.size()));
    ASSERT_TRUE(file.good()) << name;
  }
}

Input read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(WireExamples, AreWhatTheEncodersMakeToday) {
  Examples examples;
  add_control_frames(examples);
  add_control_members(examples);
  ASSERT_NO_FATAL_FAILURE(add_handshakes(examples));
  add_data_frames(examples);
  add_letters(examples);
  add_codecs(examples, "codec_sparse_fuzz", codec::sparse_fuzz_codecs());
  add_codecs(examples, "codec_elementwise_fuzz", codec::elementwise_fuzz_codecs());
  add_factors(examples, "codec_factors_fuzz", codec::factors_fuzz_codecs());
  if (std::getenv("STRETTO_WRITE_EXAMPLES") != nullptr) {
    write(examples);
  }
  for (const auto& [name, input] : examples) {
    EXPECT_TRUE(input == read(folder() / name))
        << name << " is not what the encoders make; is the wire another one?  Write it anew with "
        << "STRETTO_WRITE_EXAMPLES=1";
  }
}

}  // namespace
}  // namespace stretto

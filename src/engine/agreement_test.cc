// SPDX-License-Identifier: Apache-2.0
#include "engine/agreement.hpp"

#include "base/byte_order.hpp"
#include "tests/threads_as_ranks.hpp"

#include <functional>

#include <gtest/gtest.h>

namespace stretto::engine {
namespace {

/// What every rank hears when rank 1 of 2 brings something else.
std::string error_of(const std::vector<ParameterSpec>& first,
                     const std::vector<ParameterSpec>& second,
                     const EngineOptions& second_options = {}) {
  std::vector<std::string> texts(2);
  testing::run_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const std::size_t rank = index_of(group->rank());
    texts[rank] = agree_on_parameters(group->control(),
                                      rank == 0 ? first : second,
                                      rank == 0 ? EngineOptions{} : second_options,
                                      "none",
                                      Deadline::after(std::chrono::seconds(10)))
                      .to_string();
  });
  EXPECT_EQ(texts[0], texts[1]);
  return texts[0];
}

constexpr auto kHint = "; all ranks must run the same program on the same model";

TEST(Agreement, SameModelsAgree) {
  const std::vector<ParameterSpec> model{{"fc.weight", {10, 20}}, {"fc.bias", {10}}};
  EXPECT_EQ(error_of(model, model), "ok");
}

TEST(Agreement, AnotherShapeNamesBothRanksTheParameterAndBothShapes) {
  EXPECT_EQ(
      error_of({{"fc.weight", {10, 20}}}, {{"fc.weight", {10, 21}, DType::kBFloat16}}),
      std::string("invalid argument: rank 0 has fc.weight [10, 20] float32 as parameter 0, rank 1 "
                  "has fc.weight [10, 21] bfloat16") +
          kHint);
}

TEST(Agreement, AnotherCountNamesTheParameterThatIsTooMuch) {
  EXPECT_EQ(
      error_of({{"a", {1}}}, {{"a", {1}}, {"b", {2}}}),
      std::string("invalid argument: rank 0 has 1 parameters, rank 1 has 2; b [2] float32 is only "
                  "on rank 1") +
          kHint);
}

TEST(Agreement, AnotherOptionNamesItAndBothValues) {
  EngineOptions options;
  options.one_hop_bytes = 4096;
  EXPECT_EQ(
      error_of({{"a", {1}}}, {{"a", {1}}}, options),
      std::string("invalid argument: the one-hop size is 16384 on rank 0 and 4096 on rank 1") +
          kHint);
}

// An owner with less room than the others think would never take what they send without asking.
TEST(Agreement, AnotherScratchSizeNamesItAndBothValues) {
  EngineOptions options;
  options.scratch_bytes = 1;
  EXPECT_EQ(
      error_of({{"a", {1}}}, {{"a", {1}}}, options),
      std::string("invalid argument: the scratch size is 67108864 on rank 0 and 1 on rank 1") +
          kHint);
}

/// A control plane over which this rank's blobs go out as another version of Stretto writes them.
class ForgingPlane final : public spi::ControlPlane {
 public:
  using Forge = std::function<void(spi::Bytes&)>;
  ForgingPlane(spi::ControlPlane& real, Forge forge) : real_(real), forge_(std::move(forge)) {}

  Rank rank() const noexcept override { return real_.rank(); }
  std::size_t size() const noexcept override { return real_.size(); }
  Status health() const override { return real_.health(); }
  int descriptor() const noexcept override { return real_.descriptor(); }
  void abort(const Status& reason) noexcept override { real_.abort(reason); }
  void leave() noexcept override { real_.leave(); }
  Result<std::vector<spi::Bytes>> all_gather(std::string_view what,
                                             std::span<const std::byte> mine,
                                             Deadline deadline) override {
    spi::Bytes forged(mine.begin(), mine.end());
    forge_(forged);
    return real_.all_gather(what, forged, deadline);
  }

 private:
  spi::ControlPlane& real_;
  Forge forge_;
};

/// What every rank of three hears when rank 2 describes itself in another way.
std::string error_of_forged(const ForgingPlane::Forge& forge) {
  std::vector<std::string> texts(3);
  testing::run_ranks(3, [&](const std::shared_ptr<Group>& group) {
    const std::size_t rank = index_of(group->rank());
    ForgingPlane plane(
        group->control(), rank == 2 ? forge : [](spi::Bytes& /*as it is*/) {});
    const std::vector<ParameterSpec> model{{"fc.weight", {10, 20}}};
    texts[rank] =
        agree_on_parameters(plane, model, {}, "none", Deadline::after(std::chrono::seconds(10)))
            .to_string();
  });
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0], texts[2]);
  return texts[0];
}

TEST(Agreement, AnotherVersionNamesBothRanksAndBothVersions) {
  const std::string text = error_of_forged([](spi::Bytes& offer) {
    ByteReader reader(offer);
    const auto format = reader.get<std::uint32_t>();
    const std::string version = reader.get_text();
    const auto rest = std::span<const std::byte>(offer).subspan(2 * sizeof format + version.size());
    ByteWriter writer;
    writer.put(format);
    writer.put_text("9.9.9");
    writer.put_bytes(rest);
    offer = std::move(writer).take();
  });
  EXPECT_EQ(text,
            "invalid argument: rank 0 runs Stretto " STRETTO_VERSION
            " (format 1), rank 2 runs 9.9.9 (format 1)" +
                std::string(kHint));
}

TEST(Agreement, OfAnotherFormatOnlyTheVersionIsRead) {
  const std::string text = error_of_forged([](spi::Bytes& offer) {
    ByteWriter writer;
    writer.put(std::uint32_t{7});
    writer.put_text("1.2");
    writer.put_text("what comes here is written in another way");
    offer = std::move(writer).take();
  });
  EXPECT_EQ(text,
            "invalid argument: rank 0 runs Stretto " STRETTO_VERSION
            " (format 1), rank 2 runs 1.2 (format 7)" +
                std::string(kHint));
}

TEST(Agreement, AnOfferThatIsCutShortNamesItsRank) {
  EXPECT_EQ(error_of_forged([](spi::Bytes& offer) { offer.pop_back(); }),
            "corrupt message: rank 2 described its parameters incompletely");
}

}  // namespace
}  // namespace stretto::engine

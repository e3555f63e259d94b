// SPDX-License-Identifier: Apache-2.0
#include "engine/agreement.hpp"

#include "tests/threads_as_ranks.hpp"

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

}  // namespace
}  // namespace stretto::engine

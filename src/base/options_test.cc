// SPDX-License-Identifier: Apache-2.0
#include "stretto/options.hpp"

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace stretto {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

/// Sets variables for one test and takes them away again.
class Environment {
 public:
  explicit Environment(Variables variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : variables_) {
      ::unsetenv(name.c_str());
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::vector<std::pair<std::string, std::string>> variables_;
};

TEST(Options, LinksAreReadWithUnits) {
  EXPECT_DOUBLE_EQ(parse_link("1gbit")->bytes_per_second, 125e6);
  EXPECT_DOUBLE_EQ(parse_link("500mbit,2ms")->bytes_per_second, 62.5e6);
  EXPECT_EQ(parse_link("500mbit,2ms")->delay, std::chrono::milliseconds(2));
  EXPECT_FALSE(parse_link("none")->emulated());
  for (const char* bad : {"1", "gbit", "-1gbit", "0gbit", "1gbit,", "1gbit,2", "1 gbit"}) {
    EXPECT_FALSE(parse_link(bad).has_value()) << bad;
  }
}

TEST(Options, ChunksAreASixtyFourthOfTheGradientsWithinLimits) {
  EngineOptions options;
  EXPECT_EQ(options.chunk_bytes_for(1000), 64U << 10);
  EXPECT_EQ(options.chunk_bytes_for(std::size_t{16} << 20), 256U << 10);
  EXPECT_EQ(options.chunk_bytes_for(std::size_t{1} << 30), 1U << 20);
  options.chunk_bytes = 4096;
  EXPECT_EQ(options.chunk_bytes_for(std::size_t{1} << 30), 4096U);
}

TEST(Options, AnExchangeWithAnOrderOfItsOwnMustBeAllowed) {
  EngineOptions options;
  for (const ExchangeKind exchange : {ExchangeKind::kRing, ExchangeKind::kMpi}) {
    options.exchange = exchange;
    options.order = OrderChoice::kRank;
    const Status refused = options.validate();
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.message().find("STRETTO_ORDER=any"), std::string::npos) << refused.message();
    options.order = OrderChoice::kAny;
    EXPECT_TRUE(options.validate().is_ok());
    EXPECT_EQ(parse_exchange(to_string(exchange)).value(), exchange);
  }
  EXPECT_FALSE(parse_order("native").has_value());
  {
    Environment ring(Variables{{"STRETTO_EXCHANGE", "ring"}});
    EXPECT_FALSE(EngineOptions::from_environment().has_value());
    Environment any(Variables{{"STRETTO_ORDER", "any"}});
    EXPECT_EQ(EngineOptions::from_environment()->exchange, ExchangeKind::kRing);
    EXPECT_EQ(EngineOptions::from_environment()->order, OrderChoice::kAny);
  }
}

TEST(Options, SizesAndTimesAreReadWithUnits) {
  EXPECT_EQ(parse_bytes("64k").value(), 65536U);
  EXPECT_EQ(parse_bytes("4096").value(), 4096U);
  EXPECT_EQ(parse_duration("500us").value(), std::chrono::microseconds(500));
  EXPECT_FALSE(parse_bytes("many").has_value());
  EXPECT_FALSE(parse_duration("5").has_value());
}

TEST(Options, GroupIsReadFromEveryLauncher) {
  {
    Environment torchrun(Variables{
        {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "1234"}});
    const auto options = GroupOptions::from_environment().value();
    EXPECT_EQ(options.rank, 3U);
    EXPECT_EQ(options.size, 4U);
    EXPECT_EQ(options.master_address, "10.0.0.1");
    EXPECT_EQ(options.master_port, 1234);
  }
  {
    Environment elastic(
        Variables{{"MASTER_PORT", "1234"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
    EXPECT_EQ(GroupOptions::from_environment()->master_port, 1235);
  }
  {
    Environment mpirun(Variables{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
    EXPECT_EQ(GroupOptions::from_environment()->rank, 1U);
  }
  {
    Environment srun(Variables{{"SLURM_PROCID", "2"},
                               {"SLURM_NTASKS", "3"},
                               {"SLURM_STEP_NODELIST", "node[07-09]"},
                               {"SLURM_JOB_ID", "42"}});
    const auto options = GroupOptions::from_environment().value();
    EXPECT_EQ(options.rank, 2U);
    EXPECT_EQ(options.master_address, "node07");
    EXPECT_EQ(options.master_port, 20042);
    EXPECT_EQ(options.local_size, 1U);
  }
}

TEST(Options, AWrongLogLevelIsRefusedWithTheNamesOfTheLevels) {
  {
    Environment wrong(Variables{{"STRETTO_LOG", "loud"}});
    const auto options = EngineOptions::from_environment();
    ASSERT_FALSE(options.has_value());
    EXPECT_EQ(options.error().message(),
              "STRETTO_LOG: there is no level 'loud'; choose debug, info, warning, error or off");
  }
  for (const char* level : {"debug", "info", "warning", "error", "off", ""}) {
    Environment right(Variables{{"STRETTO_LOG", level}});
    EXPECT_TRUE(EngineOptions::from_environment().has_value()) << level;
  }
}

TEST(Options, SlurmSaysHowManyRanksAreOnThisHost) {
  const auto local_size = [](const char* tasks, const char* host) {
    Environment srun(Variables{{"SLURM_STEP_TASKS_PER_NODE", tasks}, {"SLURM_NODEID", host}});
    return GroupOptions::from_environment()->local_size;
  };
  EXPECT_EQ(local_size("2", "0"), 2U);
  EXPECT_EQ(local_size("4(x2),3", "0"), 4U);
  EXPECT_EQ(local_size("4(x2),3", "1"), 4U);
  EXPECT_EQ(local_size("4(x2),3", "2"), 3U);
  EXPECT_EQ(local_size("3,12", "1"), 12U);
  for (const char* odd : {"x", "(x", "4(x", ",", "0", "4(x2"}) {
    EXPECT_GE(local_size(odd, "7"), 1U) << odd;
  }
}

TEST(Options, LaunchersWithinASlurmStepKnowBetterThanSlurm) {
  Environment inner(Variables{{"SLURM_STEP_TASKS_PER_NODE", "1"}, {"LOCAL_WORLD_SIZE", "2"}});
  EXPECT_EQ(GroupOptions::from_environment()->local_size, 2U);
}

TEST(Options, WrongValuesNameTheVariable) {
  Environment wrong(Variables{{"RANK", "two"}});
  EXPECT_EQ(GroupOptions::from_environment().error().message(), "RANK='two' is not a whole number");
}

TEST(Options, RankBeyondSizeIsRefused) {
  Environment wrong(Variables{{"RANK", "4"}, {"WORLD_SIZE", "4"}});
  EXPECT_EQ(GroupOptions::from_environment().error().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace stretto

// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/launcher_news.hpp"

#include "rendezvous/socket.hpp"

#include "stretto/group.hpp"

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

namespace stretto::rendezvous {
namespace {

class LauncherNews : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = make_launcher_news();
    ASSERT_TRUE(made.has_value());
    news_ = std::move(*made);
    ::setenv(kLauncherNewsVariable, std::to_string(news_.get()).c_str(), 1);
  }
  ~LauncherNews() override { ::unsetenv(kLauncherNewsVariable); }

  FileDescriptor news_;
};

TEST_F(LauncherNews, TheFirstTextStays) {
  EXPECT_TRUE(launcher_news().is_ok());
  write_launcher_news(news_.get(), "rank 2 was killed by SIGKILL");
  write_launcher_news(news_.get(), "rank 1 ended with exit code 4");
  for (int look = 0; look < 2; ++look) {
    const Status news = launcher_news();
    EXPECT_EQ(news.code(), StatusCode::kPeerLost);
    EXPECT_EQ(news.message(),
              "rank 2 was killed by SIGKILL before all ranks had met, says stretto run");
  }
}

TEST_F(LauncherNews, WhatIsNoMemfdIsNotRead) {
  for (const char* number : {"", "-1", "0x", "2", "99999", "nonsense"}) {
    ::setenv(kLauncherNewsVariable, number, 1);
    EXPECT_TRUE(launcher_news().is_ok()) << number;
  }
}

TEST_F(LauncherNews, EndsTheWaitForRank0AndTheWaitOfRank0) {
  const auto port = find_free_port();
  ASSERT_TRUE(port.has_value());
  const auto join = [&](std::size_t rank) {
    GroupOptions options;
    options.rank = rank;
    options.size = 3;
    options.master_port = *port;
    const auto group = Group::join(options);
    EXPECT_FALSE(group.has_value());
    EXPECT_EQ(group.error().code(), StatusCode::kPeerLost) << group.error().to_string();
    EXPECT_NE(group.error().message().find("rank 2 was killed"), std::string_view::npos)
        << group.error().to_string();
  };
  write_launcher_news(news_.get(), "rank 2 was killed by SIGKILL");
  join(1);  // rank 0 is not there
  join(0);  // nobody else is
}

}  // namespace
}  // namespace stretto::rendezvous

// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/launcher_news.hpp"

#include "base/system_error.hpp"

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace stretto::rendezvous {

Result<FileDescriptor> make_launcher_news() {
  FileDescriptor news(::memfd_create("stretto-run-news", MFD_ALLOW_SEALING));
  if (!news.is_open()) {
    return fail(system_error("cannot make a memfd"));
  }
  return news;
}

void write_launcher_news(int descriptor, const std::string& text) noexcept {
  char first = 0;
  if (::pread(descriptor, &first, 1, 0) == 0) {
    static_cast<void>(::pwrite(descriptor, text.data(), text.size(), 0));
  }
}

Status launcher_news() {
  const char* const text = std::getenv(kLauncherNewsVariable);
  if (text == nullptr) {
    return {};
  }
  int descriptor = -1;
  const std::string_view number(text);
  std::from_chars(number.data(), number.data() + number.size(), descriptor);
  // A program in between may have closed it; the number may then be something else.
  if (descriptor < 0 || ::fcntl(descriptor, F_GET_SEALS) < 0) {
    return {};
  }
  std::array<char, 256> news{};
  const ssize_t got = ::pread(descriptor, news.data(), news.size(), 0);
  if (got <= 0) {
    return {};
  }
  return {StatusCode::kPeerLost,
          std::string(news.data(), static_cast<std::size_t>(got)) +
              " before all ranks had met, says stretto run"};
}

}  // namespace stretto::rendezvous

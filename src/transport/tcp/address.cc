// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/address.hpp"

#include "base/file_descriptor.hpp"

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

namespace stretto::transport {
namespace {

using Interfaces = std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)>;

Interfaces list_interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    list = nullptr;
  }
  return {list, &::freeifaddrs};
}

/// The usable address of an entry: up, IPv4 or IPv6, and valid on other hosts as it is written.
std::optional<SocketAddress> usable_address(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) {
    return std::nullopt;
  }
  const auto address = SocketAddress::from(entry.ifa_addr);
  if (!address) {
    return std::nullopt;
  }
  if (address->family() == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address->data());
    if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) {
      return std::nullopt;  // means something else on every link
    }
  }
  return *address;
}

std::string list_text(const ifaddrs* list) {
  std::string text;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (const auto address = usable_address(*entry)) {
      text +=
          (text.empty() ? "" : ", ") + std::string(entry->ifa_name) + " (" + address->host() + ")";
    }
  }
  return text.empty() ? "none" : text;
}

Result<SocketAddress> address_of_interface(const std::string& interface) {
  const Interfaces list = list_interfaces();
  std::optional<SocketAddress> found;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    const auto address = usable_address(*entry);
    if (!address || (entry->ifa_name != interface && address->host() != interface)) {
      continue;
    }
    if (!found || (found->family() == AF_INET6 && address->family() == AF_INET)) {
      found = address;
    }
  }
  // Linux lets one bind to all of 127.0.0.0/8 and to other local addresses that no list shows.
  if (!found) {
    if (const auto numeric = SocketAddress::parse(interface, 0)) {
      return *numeric;
    }
    return fail(StatusCode::kUnavailable,
                "there is no interface '" + interface +
                    "' that is up and has an address; there are " + list_text(list.get()));
  }
  found->set_port(0);
  return *found;
}

/// Asks the system which of its addresses it would use; a datagram socket sends nothing for that.
Result<SocketAddress> address_toward(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), "9", &hints, &found);
  if (error != 0) {
    return fail(StatusCode::kUnavailable,
                "the address '" + host + "' does not resolve: " + ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  int last_error = ENETUNREACH;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    const FileDescriptor socket(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (socket.is_open() && ::connect(socket.get(), entry->ai_addr, entry->ai_addrlen) == 0) {
      auto address = SocketAddress::of(socket.get());
      if (address) {
        address->set_port(0);
        return address;
      }
    }
    last_error = errno;
  }
  return fail(StatusCode::kUnavailable,
              "there is no way to '" + host + "': " + std::strerror(last_error));
}

}  // namespace

Result<SocketAddress> SocketAddress::from(const sockaddr* address) {
  SocketAddress result;
  if (address->sa_family == AF_INET) {
    result.size_ = sizeof(sockaddr_in);
  } else if (address->sa_family == AF_INET6) {
    result.size_ = sizeof(sockaddr_in6);
  } else {
    return fail(StatusCode::kInvalidArgument, "neither an IPv4 nor an IPv6 address");
  }
  std::memcpy(&result.storage_, address, result.size_);
  return result;
}

Result<SocketAddress> SocketAddress::parse(const std::string& address, std::uint16_t port) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  Result<SocketAddress> result =
      fail(StatusCode::kInvalidArgument, "'" + address + "' is not a numeric address");
  if (::inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    result = from(reinterpret_cast<const sockaddr*>(&v4));
  } else if (::inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    result = from(reinterpret_cast<const sockaddr*>(&v6));
  }
  if (result) {
    result->set_port(port);
  }
  return result;
}

Result<SocketAddress> SocketAddress::of(int socket) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    return fail(StatusCode::kUnavailable,
                std::string("cannot ask for a socket's address: ") + std::strerror(errno));
  }
  return from(reinterpret_cast<const sockaddr*>(&storage));
}

std::uint16_t SocketAddress::port() const noexcept {
  return family() == AF_INET ? ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port)
                             : ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
}

void SocketAddress::set_port(std::uint16_t port) noexcept {
  if (family() == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&storage_)->sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6*>(&storage_)->sin6_port = htons(port);
  }
}

std::string SocketAddress::host() const {
  char text[INET6_ADDRSTRLEN] = {};
  if (family() == AF_INET) {
    ::inet_ntop(
        AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr, text, sizeof text);
  } else {
    ::inet_ntop(
        AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr, text, sizeof text);
  }
  return text;
}

std::string SocketAddress::to_string() const {
  const std::string port_text = std::to_string(port());
  return family() == AF_INET ? host() + ":" + port_text : "[" + host() + "]:" + port_text;
}

Result<SocketAddress> choose_local_address(const std::string& interface,
                                           const std::string& route_to) {
  if (!interface.empty()) {
    return address_of_interface(interface);
  }
  if (!route_to.empty()) {
    return address_toward(route_to);
  }
  return SocketAddress::parse("127.0.0.1", 0);
}

}  // namespace stretto::transport

#include "common/net/host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace baton::net {
namespace {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

class Socket {
 public:
  Socket(int family, int type) : fd_(socket(family, type | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

std::string Bare(absl::string_view host) {
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return std::string(host);
}

constexpr int kNumeric = AI_NUMERICHOST | AI_NUMERICSERV;

struct Found {
  std::vector<Address>
      addresses;  // In the order in which the machine's configuration prefers them.
  int error = 0;  // From getaddrinfo; then there are none.
};

Found Lookup(const std::string& host, int port, int family, int flags) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_flags = flags;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  Found found;
  found.error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &list);
  if (found.error != 0) return found;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    Address& address = found.addresses.emplace_back();
    address.length = entry->ai_addrlen;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
  }
  return found;
}

absl::StatusOr<std::vector<Address>> Resolve(const std::string& host, int port, int family) {
  Found found = Lookup(Bare(host), port, family, /*flags=*/0);
  if (found.error == 0) return std::move(found.addresses);
  return absl::InvalidArgumentError(absl::StrCat(
      "'", host, "' is neither an address nor a known name: ", gai_strerror(found.error)));
}

std::string Numeric(const Address& address) {
  char text[NI_MAXHOST] = {};
  getnameinfo(address.get(), address.length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

std::optional<Address> Parse(const std::string& numeric, int port = 0) {
  const Found found = Lookup(Bare(numeric), port, AF_UNSPEC, kNumeric);
  if (found.error != 0) return std::nullopt;
  return found.addresses.front();
}

bool CanBind(const Address& address) {
  const Socket probe(address.family(), SOCK_STREAM);
  return probe.fd() >= 0 && bind(probe.fd(), address.get(), address.length) == 0;
}

// Connecting a datagram socket asks the routing table and sends nothing.
std::optional<std::string> SourceTowards(const Address& target) {
  const Socket probe(target.family(), SOCK_DGRAM);
  Address source;
  source.length = sizeof(source.storage);
  if (probe.fd() < 0 || connect(probe.fd(), target.get(), target.length) != 0 ||
      getsockname(probe.fd(), source.get(), &source.length) != 0) {
    return std::nullopt;
  }
  return Numeric(source);
}

}  // namespace

std::string JoinHostPort(absl::string_view host, int port) {
  const bool bare_ipv6 = host.find(':') != absl::string_view::npos && host.front() != '[';
  return bare_ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<std::pair<std::string, int>> SplitHostPort(absl::string_view text) {
  const size_t colon = text.rfind(':');
  int port = 0;
  const bool has_port = colon != absl::string_view::npos && colon > 0 &&
                        absl::SimpleAtoi(text.substr(colon + 1), &port) && port >= 0 &&
                        port <= 65535;
  const absl::string_view host = has_port ? text.substr(0, colon) : absl::string_view();
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (!has_port || (!bracketed && host.find_first_of(":[") != absl::string_view::npos)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "'; expected HOST:PORT, IPv6 addresses in brackets"));
  }
  return std::pair(Bare(host), port);
}

absl::StatusOr<std::string> ListenAddress(const std::string& host) {
  auto addresses = Resolve(host, 0, AF_UNSPEC);
  if (!addresses.ok()) return addresses.status();
  for (const Address& address : *addresses) {
    if (CanBind(address)) return Numeric(address);
  }
  const std::string numeric = Numeric(addresses->front());
  return absl::InvalidArgumentError(
      absl::StrCat("'", host, "'", numeric == Bare(host) ? "" : absl::StrCat(" (", numeric, ")"),
                   " is no address of this machine"));
}

bool IsUnspecified(const std::string& address) {
  const std::string bare = Bare(address);
  return bare == "0.0.0.0" || bare == "::";
}

bool IsLoopback(const std::string& address) {
  const std::optional<Address> parsed = Parse(address);
  if (!parsed.has_value()) return false;
  if (parsed->family() == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&parsed->storage);
    return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&parsed->storage);
  return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

bool IsIpv6(const std::string& address) {
  const std::optional<Address> parsed = Parse(address);
  return parsed.has_value() && parsed->family() == AF_INET6;
}

std::string ReachableHere(const std::string& address) {
  if (!IsUnspecified(address)) return address;
  return IsIpv6(address) ? "::1" : "127.0.0.1";
}

absl::StatusOr<std::string> RouteSource(const std::string& listen, const std::string& target) {
  const auto split = SplitHostPort(target);
  if (!split.ok()) return split.status();
  const int family = IsIpv6(listen) ? AF_UNSPEC : AF_INET;
  const auto addresses = Resolve(split->first, split->second, family);
  if (addresses.ok()) {
    for (const Address& address : *addresses) {
      if (auto source = SourceTowards(address)) return *std::move(source);
    }
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no route from ", listen, " to ", target,
                   addresses.ok() ? "" : absl::StrCat(" (", addresses.status().message(), ")")));
}

std::string DefaultRouteSource(const std::string& listen) {
  // Addresses for documentation, which no machine has: only the default route leads to them.
  constexpr const char* kFarIpv4 = "198.51.100.1";
  constexpr const char* kFarIpv6 = "2001:db8::1";
  for (const char* far : {kFarIpv4, kFarIpv6}) {
    if (far == kFarIpv6 && !IsIpv6(listen)) break;
    const std::optional<Address> target = Parse(far, /*port=*/9);
    if (!target.has_value()) continue;
    if (auto source = SourceTowards(*target)) return *std::move(source);
  }
  return ReachableHere(listen);
}

bool CanListen(const std::string& address, int port) {
  const std::optional<Address> parsed = Parse(address, port);
  return parsed.has_value() && CanBind(*parsed);
}

std::string DeviceOf(const std::string& address) {
  const std::string bare = Bare(address);
  // All of 127.0.0.0/8 is the loopback device's, whether it is written there or not.
  const std::string wanted = IsLoopback(bare) && !IsIpv6(bare) ? "127.0.0.1" : bare;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Address own;
    own.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&own.storage, entry->ifa_addr, own.length);
    if (Numeric(own) == wanted) return entry->ifa_name;
  }
  return "";
}

absl::StatusOr<std::vector<std::string>> SplitHostPorts(absl::string_view text) {
  std::vector<std::string> parts;
  if (absl::StripAsciiWhitespace(text).empty()) return parts;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    part = absl::StripAsciiWhitespace(part);
    if (const auto split = SplitHostPort(part); !split.ok()) return split.status();
    parts.emplace_back(part);
  }
  return parts;
}

absl::StatusOr<std::vector<std::string>> NumericAddresses(const std::string& host_port) {
  const auto split = SplitHostPort(host_port);
  if (!split.ok()) return split.status();
  const Found found = Lookup(split->first, split->second, AF_UNSPEC, /*flags=*/0);
  if (found.error != 0) {
    return absl::UnavailableError(
        absl::StrCat("'", split->first, "' is not resolved: ", gai_strerror(found.error)));
  }
  std::set<std::string> numeric;
  for (const Address& address : found.addresses) {
    const std::string text = Numeric(address);
    if (!text.empty()) numeric.insert(JoinHostPort(text, split->second));
  }
  return std::vector<std::string>(numeric.begin(), numeric.end());
}

bool IsNumericHostPort(const std::string& host_port) {
  const auto split = SplitHostPort(host_port);
  return split.ok() && Parse(split->first).has_value();
}

namespace {

// As servers do it: what a former one has left behind is not in the way, and :: takes IPv4 too.
bool Listens(int fd, const Address& where) {
  const int on = 1;
  const int off = 0;
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) return false;
  if (where.family() == AF_INET6) {
    (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  return bind(fd, where.get(), where.length) == 0 && listen(fd, 1) == 0;
}

}  // namespace

absl::Status CheckListen(const std::string& address, int port) {
  const std::string shown = JoinHostPort(address, port);
  const Found found = Lookup(address, port, AF_UNSPEC, kNumeric);
  if (found.error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", shown, ": that is no numeric address and port"));
  }
  const Address& where = found.addresses.front();
  const Socket listener(where.family(), SOCK_STREAM);
  if (listener.fd() >= 0 && Listens(listener.fd(), where)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", shown, ": ", std::strerror(errno)));
}

}  // namespace baton::net

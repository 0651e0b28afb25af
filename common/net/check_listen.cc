#include "common/net/check_listen.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/net/host.h"

namespace baton::net {
namespace {

// As servers do it: what a former one has left behind is not in the way, and :: takes IPv4 too.
bool Listens(int fd, const addrinfo& where) {
  const int on = 1;
  const int off = 0;
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) return false;
  if (where.ai_family == AF_INET6) {
    (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  return bind(fd, where.ai_addr, where.ai_addrlen) == 0 && listen(fd, 1) == 0;
}

}  // namespace

absl::Status CheckListen(const std::string& address, int port) {
  const std::string shown = JoinHostPort(address, port);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", shown, ": that is no numeric address and port"));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool listens = fd >= 0 && Listens(fd, *found);
  const int error = errno;
  if (fd >= 0) close(fd);
  if (listens) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", shown, ": ", std::strerror(error)));
}

}  // namespace baton::net

// The sockets that this process has open, for tests of what becomes of connections.
#ifndef COMMON_NET_TESTING_OPEN_SOCKETS_H_
#define COMMON_NET_TESTING_OPEN_SOCKETS_H_

#include <sys/socket.h>

#include <filesystem>
#include <vector>

#include "absl/strings/numbers.h"

namespace baton::net::testing {

// Their descriptors: of connections, and of what it listens on. Any thread.
inline std::vector<int> OpenSockets() {
  std::vector<int> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int fd = -1;
    int type = 0;
    socklen_t bytes = sizeof(type);
    if (!absl::SimpleAtoi(entry.path().filename().string(), &fd)) continue;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0) sockets.push_back(fd);
  }
  return sockets;
}

}  // namespace baton::net::testing

#endif  // COMMON_NET_TESTING_OPEN_SOCKETS_H_

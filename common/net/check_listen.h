// Whether a server could listen, before anything else is begun.
#ifndef COMMON_NET_CHECK_LISTEN_H_
#define COMMON_NET_CHECK_LISTEN_H_

#include <string>

#include "absl/status/status.h"

namespace baton::net {

// OK if a server could listen on this port of a numeric address now, else UNAVAILABLE with the
// address and the reason. Who has the same port on an address that covers this one, such as
// 0.0.0.0, is in the way as well, and so is who would share it (SO_REUSEPORT).
absl::Status CheckListen(const std::string& address, int port);

}  // namespace baton::net

#endif  // COMMON_NET_CHECK_LISTEN_H_

// Hosts and ports as people write them: which address of this machine a name stands for, how a
// listener's address is told to others, how both are printed. Lookups of names may wait for DNS:
// not for threads that serve. Any thread.
#ifndef COMMON_NET_HOST_H_
#define COMMON_NET_HOST_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::net {

// "10.0.0.1:80", "node-3:80", "[::1]:80".
std::string JoinHostPort(absl::string_view host, int port);

// The inverse; brackets are taken off. InvalidArgument says what was expected.
absl::StatusOr<std::pair<std::string, int>> SplitHostPort(absl::string_view text);

// The numeric address to listen on for `host`: a name, an IPv4 or IPv6 address, with or without
// brackets. The first of a name's addresses that this machine has. InvalidArgument if there is no
// such name, or none of its addresses is one of this machine.
absl::StatusOr<std::string> ListenAddress(const std::string& host);

// Both take numeric addresses. "0.0.0.0" and "::" are unspecified: they mean all addresses, to
// listen on but not to connect to.
bool IsUnspecified(const std::string& address);
bool IsLoopback(const std::string& address);
bool IsIpv6(const std::string& address);

// Loopback of the family of an unspecified address; any other address is itself.
std::string ReachableHere(const std::string& address);

// This machine's address on the way to `target` (HOST:PORT), of the family of the unspecified
// address `listen` ("::" takes both). Nothing is sent. FailedPrecondition if there is no way.
absl::StatusOr<std::string> RouteSource(const std::string& listen, const std::string& target);

// This machine's address on its default route; loopback on a machine without one.
std::string DefaultRouteSource(const std::string& listen);

// Whether a process could listen on this port of a numeric address now.
bool CanListen(const std::string& address, int port);

// The network device that has `address`; empty if none does.
std::string DeviceOf(const std::string& address);

// Lists of HOST:PORT, and every address that a name stands for. Lookups may wait for DNS: not for
// threads that serve. Any thread.

// "a:1, b:2" as its parts, each HOST:PORT (host.h); none for an empty text.
absl::StatusOr<std::vector<std::string>> SplitHostPorts(absl::string_view text);

// Every address that HOST:PORT stands for, as numeric HOST:PORT, each once, sorted. InvalidArgument
// if it isn't of this form; Unavailable if the name is not resolved, which may be DNS's fault.
absl::StatusOr<std::vector<std::string>> NumericAddresses(const std::string& host_port);

// Whether the host of HOST:PORT is an address and no name.
bool IsNumericHostPort(const std::string& host_port);

// Whether a server could listen, before anything else is begun.

// OK if a server could listen on this port of a numeric address now, else UNAVAILABLE with the
// address and the reason. Who has the same port on an address that covers this one, such as
// 0.0.0.0, is in the way as well, and so is who would share it (SO_REUSEPORT).
absl::Status CheckListen(const std::string& address, int port);

}  // namespace baton::net

#endif  // COMMON_NET_HOST_H_

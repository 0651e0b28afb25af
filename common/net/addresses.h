// Lists of HOST:PORT, and every address that a name stands for. Lookups may wait for DNS: not for
// threads that serve. Any thread.
#ifndef COMMON_NET_ADDRESSES_H_
#define COMMON_NET_ADDRESSES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::net {

// "a:1, b:2" as its parts, each HOST:PORT (host.h); none for an empty text.
absl::StatusOr<std::vector<std::string>> SplitHostPorts(absl::string_view text);

// Every address that HOST:PORT stands for, as numeric HOST:PORT, each once, sorted. InvalidArgument
// if it isn't of this form; Unavailable if the name is not resolved, which may be DNS's fault.
absl::StatusOr<std::vector<std::string>> NumericAddresses(const std::string& host_port);

// Whether the host of HOST:PORT is an address and no name.
bool IsNumericHostPort(const std::string& host_port);

}  // namespace baton::net

#endif  // COMMON_NET_ADDRESSES_H_

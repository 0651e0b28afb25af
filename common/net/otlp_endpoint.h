// The address of an OTLP collector as users write it.
#ifndef COMMON_NET_OTLP_ENDPOINT_H_
#define COMMON_NET_OTLP_ENDPOINT_H_

#include <string>

#include "absl/status/statusor.h"

namespace baton::net {

// OTLP's port over gRPC.
inline constexpr int kDefaultOtlpPort = 4317;
// The collector of --enable-trace without an endpoint.
inline constexpr char kDefaultOtlpEndpoint[] = "localhost:4317";

// HOST:PORT of "host:port", "host" or "http://host:port", with or without a trailing slash; IPv6
// addresses in brackets. INVALID_ARGUMENT for https, for a path (OTLP over HTTP has one, and its
// port does not speak gRPC), and for anything that is not an address.
absl::StatusOr<std::string> ParseOtlpEndpoint(const std::string& text);

}  // namespace baton::net

#endif  // COMMON_NET_OTLP_ENDPOINT_H_

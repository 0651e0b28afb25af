// The address of an OTLP collector as people write it.
#ifndef COMMON_TRACING_ENDPOINT_H_
#define COMMON_TRACING_ENDPOINT_H_

#include <string>

#include "absl/status/statusor.h"

namespace baton::tracing {

// OTLP's port over gRPC.
inline constexpr int kDefaultPort = 4317;
// Where --enable-trace alone sends spans.
inline constexpr char kDefaultEndpoint[] = "localhost:4317";

// HOST:PORT of "host:port", "host" or "http://host:port" with or without a slash behind it; IPv6
// addresses in brackets. INVALID_ARGUMENT for https, for a path (OTLP over HTTP has one, and its
// port does not speak gRPC), and for what is no address.
absl::StatusOr<std::string> ParseEndpoint(const std::string& text);

}  // namespace baton::tracing

#endif  // COMMON_TRACING_ENDPOINT_H_

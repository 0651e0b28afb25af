// A GET from a process of this machine: of the router or of a worker's probes.
#ifndef SERVICES_BATON_HTTP_GET_H_
#define SERVICES_BATON_HTTP_GET_H_

#include <string>

#include "absl/status/statusor.h"

namespace baton {

struct HttpTarget {
  std::string host;  // Numeric.
  int port = 0;
  bool https = false;  // The certificate is not looked at: it is this machine's own process.
};

struct HttpAnswer {
  int status = 0;
  std::string body;
};

// Waits a second at most. UNAVAILABLE without an answer.
absl::StatusOr<HttpAnswer> HttpGet(const HttpTarget& target, const std::string& path);

}  // namespace baton

#endif  // SERVICES_BATON_HTTP_GET_H_

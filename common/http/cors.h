// Cross-origin requests of browsers (the Fetch standard's CORS protocol): which pages of other
// origins may read this server's answers.
#ifndef COMMON_HTTP_CORS_H_
#define COMMON_HTTP_CORS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/http/http_handler.h"

namespace baton {

struct CorsPolicy {
  bool any_origin = false;
  std::vector<std::string> origins;  // "https://example.org:8443".

  bool enabled() const { return any_origin || !origins.empty(); }
};

// "" (none), "*", or origins separated by commas. INVALID_ARGUMENT names the part that is no
// origin.
absl::StatusOr<CorsPolicy> ParseCorsPolicy(std::string_view text);

// What every answer to `request` carries.
HttpHeaders CorsHeaders(const CorsPolicy& policy, const HttpRequest& request);

// The answer to a browser's preflight, which asks before the request itself and carries no key;
// nullopt if `request` is none, or CORS is off.
std::optional<HttpResponse> AnswerPreflight(const CorsPolicy& policy, const HttpRequest& request);

}  // namespace baton

#endif  // COMMON_HTTP_CORS_H_

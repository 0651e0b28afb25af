#include "common/http/cors.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/strings.h"

namespace baton {
namespace {

constexpr char kPreflightMaxAgeSeconds[] = "600";

// scheme://host[:port], as browsers write it: no path, no slash at the end.
bool IsOrigin(const std::string& text) {
  const size_t scheme = text.find("://");
  if (scheme == std::string::npos || scheme == 0 || scheme + 3 == text.size()) return false;
  return text.find_first_of("/ \t?#,*\"", scheme + 3) == std::string::npos;
}

bool Allowed(const CorsPolicy& policy, std::string_view origin) {
  if (origin.empty()) return false;
  return policy.any_origin ||
         std::find(policy.origins.begin(), policy.origins.end(), origin) != policy.origins.end();
}

}  // namespace

absl::StatusOr<CorsPolicy> ParseCorsPolicy(std::string_view text) {
  CorsPolicy policy;
  for (const auto part : absl::StrSplit(ToAbsl(text), ',', absl::SkipWhitespace())) {
    const std::string origin(absl::StripAsciiWhitespace(part));
    if (origin == "*") {
      policy.any_origin = true;
    } else if (IsOrigin(origin)) {
      policy.origins.push_back(absl::AsciiStrToLower(origin));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", origin, "\" is no origin: expected * or such as https://example.org"));
    }
  }
  return policy;
}

HttpHeaders CorsHeaders(const CorsPolicy& policy, const HttpRequest& request) {
  if (!policy.enabled()) return {};
  const std::string_view origin = request.Header("Origin");
  HttpHeaders headers;
  // Answers differ by origin, so caches must keep them apart.
  if (!policy.any_origin) headers.emplace_back("Vary", "Origin");
  if (!Allowed(policy, origin)) return headers;
  headers.emplace_back("Access-Control-Allow-Origin",
                       policy.any_origin ? "*" : std::string(origin));
  headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  return headers;
}

std::optional<HttpResponse> AnswerPreflight(const CorsPolicy& policy, const HttpRequest& request) {
  if (!policy.enabled() || request.method != "OPTIONS") return std::nullopt;
  if (request.Header("Access-Control-Request-Method").empty()) return std::nullopt;
  HttpResponse response;
  response.status = 204;
  response.content_type.clear();
  if (!Allowed(policy, request.Header("Origin"))) return response;
  response.headers = {{"Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS"},
                      {"Access-Control-Max-Age", kPreflightMaxAgeSeconds}};
  // "*" would leave out Authorization, so what is asked for is allowed by name.
  const std::string_view asked = request.Header("Access-Control-Request-Headers");
  if (!asked.empty()) {
    response.headers.emplace_back("Access-Control-Allow-Headers", std::string(asked));
  }
  return response;
}

}  // namespace baton
